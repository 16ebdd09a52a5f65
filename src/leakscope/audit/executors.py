"""Where cells run: in this process, or in several with their threads pinned, so that they do not fight over cores."""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from leakscope.audit.cell import CELLS, Cell
from leakscope.types import Progress

__all__ = ["Done", "Event", "Executor", "InProcess", "Local", "Step"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A running cell made a step."""

    key: str
    step: int
    steps: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A cell is no longer running: its record is there, or ``busy``: another process has it."""

    key: str
    busy: bool = False


Event = Step | Done


class Executor(Protocol):
    """Runs cells and tells what happens to them. ``slots`` is how many run at a time."""

    @property
    def slots(self) -> int: ...

    def submit(self, cell: Cell) -> None: ...

    def events(self, timeout: float) -> list[Event]:
        """What has happened since the last call; waits up to ``timeout`` seconds for something."""
        ...

    def close(self) -> None:
        """End at once whatever still runs; a cell that was broken off goes on from its checkpoint another time."""
        ...


@final
class InProcess:
    """One cell at a time, in this process; ``stop`` is asked at every step and ends the cell with what it has."""

    slots = 1

    def __init__(self, out: Path, base: Path, *, every: float = 5.0, stop: Callable[[], bool] = lambda: False) -> None:
        self._out, self._base, self._every, self._stop = out, base, every, stop
        self._waiting: list[Cell] = []
        self._listener: Callable[[Event], None] = lambda _: None

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Hear of steps while they happen: :meth:`events` itself runs the cell."""
        self._listener = listener

    def submit(self, cell: Cell) -> None:
        self._waiting.append(cell)

    def events(self, timeout: float) -> list[Event]:
        if not self._waiting:
            return []
        cell = self._waiting.pop(0)
        return [_run(cell, self._out, self._base, self._every, self._tell(cell))]

    def _tell(self, cell: Cell) -> Callable[[Progress], None]:
        def tell(progress: Progress) -> None:
            self._listener(_step(cell, progress))
            if self._stop():
                raise KeyboardInterrupt

        return tell

    def close(self) -> None:
        self._waiting.clear()


@final
class Local:
    """``jobs`` processes, each with its share of the cores. A process that dies is replaced, and its cell run again."""

    def __init__(self, out: Path, base: Path, *, jobs: int, every: float = 5.0) -> None:
        self.slots = jobs
        self._context = multiprocessing.get_context("spawn")
        self._arguments = (str(out), str(base), every, max(1, (os.cpu_count() or 1) // jobs))
        self._workers: list[_Worker] = []
        self._retried: dict[str, int] = {}

    def submit(self, cell: Cell) -> None:
        idle = next((worker for worker in self._workers if worker.cell is None), None)
        if idle is None:
            idle = _Worker(self._context, self._arguments)
            self._workers.append(idle)
        idle.begin(cell)

    def events(self, timeout: float) -> list[Event]:
        deadline = time.monotonic() + timeout
        while True:
            heard = [event for worker in self._workers for event in worker.hear()]
            heard += self._bury()
            if heard or time.monotonic() >= deadline:
                return heard
            time.sleep(0.02)

    def _bury(self) -> list[Event]:
        """Cells of dead processes run again, three times at most: then what killed them is the cell itself."""
        lost: list[Event] = []
        for worker in [worker for worker in self._workers if not worker.alive]:
            self._workers.remove(worker)
            cell = worker.cell
            if cell is None:
                continue
            tries = self._retried[cell.key] = self._retried.get(cell.key, 0) + 1
            if tries <= 3:
                log.warning("The process running %s ended (exit %s): it is run again.", cell.title, worker.exit_code)
                self.submit(cell)
            else:
                _write_loss(cell, Path(self._arguments[0]), worker.exit_code)
                lost.append(Done(key=cell.key))
        return lost

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers.clear()


@final
class _Worker:
    """One process and the two queues to it."""

    def __init__(self, context: Any, arguments: tuple[object, ...]) -> None:
        self.cell: Cell | None = None
        self._inbox, self._outbox = context.Queue(), context.Queue()
        self._process = context.Process(target=_work, args=(self._inbox, self._outbox, *arguments), daemon=True)
        self._process.start()

    def begin(self, cell: Cell) -> None:
        self.cell = cell
        self._inbox.put(cell)

    def hear(self) -> list[Event]:
        heard: list[Event] = []
        while True:
            try:
                event: Event = self._outbox.get_nowait()
            except queue.Empty:
                return heard
            heard.append(event)
            if isinstance(event, Done):
                self.cell = None

    @property
    def alive(self) -> bool:
        return bool(self._process.is_alive())

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def end(self) -> None:
        self._process.terminate()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _work(inbox: Any, outbox: Any, out: str, base: str, every: float, threads: int) -> None:
    """The life of a worker: cells in, events out, until its parent ends it or is gone."""
    # Ctrl-C reaches every process of the terminal; what to do about it is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_outlive_nobody, args=(os.getppid(),), daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    while True:
        cell: Cell = inbox.get()
        told = [0.0]

        def tell(progress: Progress, cell: Cell = cell, told: list[float] = told) -> None:
            if time.monotonic() - told[0] >= 0.2:
                told[0] = time.monotonic()
                outbox.put(_step(cell, progress))

        outbox.put(_run(cell, Path(out), Path(base), every, tell))


def _outlive_nobody(parent: int) -> None:
    """A killed campaign leaves no process behind."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _run(cell: Cell, out: Path, base: Path, every: float, tell: Callable[[Progress], None]) -> Done:
    from leakscope.audit.cell_run import Busy, run_cell

    try:
        run_cell(cell, out / CELLS / cell.key, base=base, every=every, callback=tell)
    except Busy:
        return Done(key=cell.key, busy=True)
    return Done(key=cell.key)


def _write_loss(cell: Cell, out: Path, exit_code: int | None) -> None:
    from leakscope.audit.cell_run import blank_record
    from leakscope.audit.record import FAILED
    from leakscope.audit.store import write_plain

    message = f"The process running this cell ended four times (exit {exit_code}); it may need more memory."
    write_plain(out / CELLS / cell.key, blank_record(cell, FAILED, message))


def _step(cell: Cell, progress: Progress) -> Step:
    return Step(key=cell.key, step=progress.step, steps=progress.steps, loss=progress.loss, seconds=progress.seconds)
