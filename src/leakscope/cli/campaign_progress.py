"""A running campaign on the screen: a bar for the whole, one for each cell under way, both with the time left."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.progress import TaskID

from leakscope.cli.progress import bars, clock

if TYPE_CHECKING:
    from leakscope.audit.runner import Running, State

__all__ = ["CampaignWatch"]

_QUIET: Final = 15.0
"""Seconds between lines where there is no terminal to draw bars on."""


class CampaignWatch:
    """A watcher for :func:`leakscope.audit.runner.run_campaign`, and the display it feeds while the block runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = bars(console)
        self._whole: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, state: State) -> None:
        """Show where the campaign is."""
        left = state.seconds_left()
        words = "" if left is None else f"about {clock(left)} left"
        done = len(state.ended)
        if not self._console.is_terminal:
            if time.monotonic() - self._said >= _QUIET:
                self._said = time.monotonic()
                running = "; ".join(_where(one) for one in state.running.values())
                self._console.print(f"{done} of {state.total} cells, {words}. Running: {running}", soft_wrap=True)
            return
        if self._whole is None:
            self._whole = self._bars.add_task("campaign", total=state.total, state=words)
        self._bars.update(self._whole, completed=done, state=words)
        for key, one in state.running.items():
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task(one.cell.title, total=1, state="")
            spent = time.monotonic() - one.since
            rest = spent / one.step * (one.steps - one.step) if one.step else None
            words = f"loss {one.loss:.3g}, {clock(rest)} left" if rest is not None else f"{clock(spent)}"
            self._bars.update(self._tasks[key], total=one.steps or 1, completed=one.step, state=words)
        for key in [key for key in self._tasks if key not in state.running]:
            self._bars.remove_task(self._tasks.pop(key))


def _where(one: Running) -> str:
    return f"{one.cell.title}, step {one.step}/{one.steps}" if one.step else one.cell.title
