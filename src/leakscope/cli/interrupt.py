"""Ctrl-C as a wish, not a blow: the first asks a command to stop where it can, the second stops it at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

from leakscope.cli.console import notice

__all__ = ["Interrupt"]


class Interrupt:
    """While this is entered, a Ctrl-C only sets ``asked``, at whatever moment it comes; a second one raises."""

    def __init__(self, stopping: str) -> None:
        self.asked = False
        self._stopping = stopping

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        notice(self._stopping)
