"""A running attack on the screen: a bar with the loss and the time left, or a line now and then in a log file."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from leakscope.types import Callback, Progress

__all__ = ["Watch", "bars", "clock", "together"]

_QUIET: Final = 30.0
"""Seconds between lines where there is no terminal to draw a bar on."""


def bars(console: Console) -> Bars:
    """Bars with a title, a count and a state in words; nothing where there is no terminal to draw them on."""
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[state]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class Watch:
    """A callback for one attack, and the display it feeds while the block runs.

    ``jobs``: how many restarts run side by side; with one, a restart that begins means that those before it have ended.
    ``seconds``: the budget of the attack, which bounds the time left.
    """

    def __init__(self, console: Console, *, title: str, jobs: int = 1, seconds: float | None = None) -> None:
        self._console, self._title, self._jobs, self._seconds = console, title, jobs, seconds
        self._bars = bars(console)
        self._task: TaskID | None = None
        self._said = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._steps: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def retitle(self, title: str) -> None:
        """Another attack begins: a new bar, a new clock."""
        self._title, self._first = title, None
        self._steps.clear()
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None

    def __call__(self, progress: Progress) -> None:
        """Show where a restart is."""
        self._steps[progress.restart] = progress.step
        done = sum(self._steps.values())
        if self._jobs == 1:
            done = progress.restart * progress.steps + progress.step
        total = progress.steps * progress.restarts
        if self._first is None:  # a resumed run starts somewhere in the middle
            self._first = (done, time.monotonic())
        left = self._left(done, total, progress)
        state = f"loss {progress.loss:.3g}, best {progress.best:.3g}"
        if progress.restarts > 1:
            state += f", restart {progress.restart + 1}/{progress.restarts}"
        if left is not None:
            state += f", {clock(left)} left"
        if self._console.is_terminal:
            if self._task is None:
                self._task = self._bars.add_task(self._title, total=total, completed=done, state=state)
            self._bars.update(self._task, total=total, completed=done, state=state)
        elif time.monotonic() - self._said >= _QUIET:
            self._said = time.monotonic()
            self._console.print(f"{self._title}: step {done}/{total}, {state}", soft_wrap=True)

    def _left(self, done: int, total: int, progress: Progress) -> float | None:
        """Seconds until the attack is done, at the pace so far."""
        if self._first is None or done <= self._first[0]:
            return None
        pace = (time.monotonic() - self._first[1]) / (done - self._first[0])
        left = pace * (total - done)
        if self._seconds is not None:
            rounds = -(-progress.restarts // self._jobs)
            begun = progress.restart // self._jobs  # rounds that are over, each with its share of the budget
            left = min(left, max(0.0, self._seconds * (1 - begun / rounds) - progress.seconds))
        return left


def together(*callbacks: Callback) -> Callback:
    """One callback that tells all of these."""

    def told(progress: Progress) -> None:
        for callback in callbacks:
            callback(progress)

    return told


def clock(seconds: float) -> str:
    """``42 s``, ``3:07`` or ``1:02:30``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
