"""Signs of life: who runs a trial, whether that process still exists, and a thread that says so to the others."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast, final

__all__ = ["Heartbeat", "alive_here", "myself"]

log = logging.getLogger(__name__)

_PROC: Final = Path("/proc")


def myself() -> dict[str, Any]:
    """This process, told apart from every other on every machine: the machine's boot, and the process' start."""
    return {"host": platform.node(), "pid": os.getpid(), "boot": _boot(), "start": _start(os.getpid())}


def alive_here(owner: object) -> bool | None:
    """Whether ``owner``, as :func:`myself` gave it there, still runs; ``None`` where this machine cannot tell."""
    if not isinstance(owner, dict):
        return None
    who = cast("dict[str, Any]", owner)
    boot, pid = _boot(), who.get("pid")
    if boot is None or who.get("boot") != boot or not isinstance(pid, int) or who.get("start") is None:
        return None
    return _start(pid) == who["start"]


def _boot() -> str | None:
    """This boot of this machine and this view of its processes: a container sees its own."""
    try:
        space = (_PROC / "self/ns/pid").stat().st_ino
        return f"{(_PROC / 'sys/kernel/random/boot_id').read_text(encoding='ascii').strip()}/{space}"
    except OSError:
        return None


def _start(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks; ``None`` where there is none, or only its shell is left."""
    try:
        rest = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if rest[0] in "ZX" else int(rest[19])


@final
class Heartbeat:
    """Calls ``beat`` with 1, 2, 3, … every ``every`` seconds while the block runs, whatever the block is busy with.

    ``lost`` is set once ``beat`` answers ``False``: others have taken this process for dead.
    """

    def __init__(self, beat: Callable[[int], bool], *, every: float) -> None:
        self.lost = False
        self._beat, self._every, self._done = beat, every, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        count = 0
        while not self._done.wait(self._every):
            count += 1
            try:
                self.lost = not self._beat(count)
            except Exception as problem:  # a storage that is away for a moment must not end the attack
                log.warning("No sign of life could be given to the study: %s", problem)
            if self.lost:
                return
