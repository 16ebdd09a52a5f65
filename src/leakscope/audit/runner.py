"""Running a campaign: what has ended stays, what is missing runs, and a broken campaign resumes where it was."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from leakscope.audit.campaign import Campaign
from leakscope.audit.cell import CELLS, MANIFEST, Cell, Manifest, read_manifest
from leakscope.audit.cell_run import blank_record, ended
from leakscope.audit.executors import Done, Event, Executor, InProcess, Step
from leakscope.audit.record import FAILED, SKIPPED
from leakscope.audit.schedule import Ended, Schedule
from leakscope.audit.store import ensure_writable, replacing, write_plain
from leakscope.errors import BadInput

__all__ = ["PROGRESS", "Running", "State", "begin", "run_campaign"]

log = logging.getLogger(__name__)

PROGRESS: Final = "progress.json"
"""Where a running campaign writes how far it is, for those who follow it from outside."""
_AGAIN: Final = 1.0
"""Seconds until a cell that another process has in hand is looked at again."""


@dataclass(slots=True, kw_only=True)
class Running:
    """A cell under way."""

    cell: Cell
    since: float
    step: int = 0
    steps: int = 0
    loss: float = float("nan")


@dataclass(slots=True, kw_only=True)
class State:
    """How far a campaign is. ``ended`` holds every cell with a record, ``ran`` the seconds of those run just now, by
    attack."""

    cells: tuple[Cell, ...]
    ended: dict[str, Ended] = field(default_factory=dict[str, Ended])
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    ran: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    slots: int = 1

    @property
    def total(self) -> int:
        return len(self.cells)

    def seconds_left(self) -> float | None:
        """From how long each attack took so far; one that has not ended yet is taken for the slowest of the others."""
        means = {attack: sum(times) / len(times) for attack, times in self.ran.items()}
        if not means:
            return None
        slowest, now = max(means.values()), time.monotonic()
        left = 0.0
        for cell in self.cells:
            if cell.key in self.ended:
                continue
            one = self.running.get(cell.key)
            spent = now - one.since if one is not None else 0.0
            if one is not None and one.step:
                left += spent / one.step * (one.steps - one.step)
            else:
                left += max(means.get(cell.attack, slowest) - spent, 0.0)
        return left / self.slots

    def to_json(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "done": len(self.ended),
            "failed": sum(one.status == FAILED for one in self.ended.values()),
            "seconds_left": self.seconds_left(),
            "running": [
                {"cell": key, "title": one.cell.title, "step": one.step, "steps": one.steps}
                for key, one in self.running.items()
            ],
            "updated": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def begin(campaign: Campaign, cells: Sequence[Cell], out: Path) -> Manifest:
    """Write the manifest, or accept the one that is there: a folder belongs to one campaign.

    A campaign that grew or changed keeps what it has already answered: cells are found again by what they are.
    """
    ensure_writable(out)
    content = campaign.model_dump(mode="json", by_alias=True, exclude_none=True)
    manifest = Manifest(
        name=campaign.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        campaign=content,
        cells=tuple(cells),
    )
    if (out / MANIFEST).exists():
        earlier = read_manifest(out)
        if earlier.name != campaign.name:
            raise BadInput(
                f"'{out}' holds the campaign '{earlier.name}', this one is '{campaign.name}'. Choose another folder."
            )
        if earlier.campaign == content and earlier.cells == manifest.cells:
            return earlier
    elif any(out.glob("*.json")):
        raise BadInput(f"'{out}' holds something else than a campaign. Choose an empty folder.")
    with replacing(out / MANIFEST) as part:
        part.write_text(manifest.to_text(), encoding="utf-8")
    return manifest


def run_campaign(
    manifest: Manifest,
    out: Path,
    executor: Executor,
    *,
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[State], None] | None = None,
    retry_failed: bool = False,
) -> State:
    """Run every cell that has no record yet, in the schedule's order, until all have ended or ``stop`` says so."""
    schedule, state = Schedule(manifest.cells), State(cells=manifest.cells, slots=executor.slots)
    open_cells = {cell.key: cell for cell in manifest.cells}
    _collect(out, open_cells, state, retry_failed=retry_failed)
    later: dict[str, float] = {}
    clock = _Clock(out, state, watch)

    def hear(event: Event) -> None:
        if isinstance(event, Step) and (one := state.running.get(event.key)) is not None:
            one.step, one.steps, one.loss = event.step, event.steps, event.loss
        clock.tick()

    if isinstance(executor, InProcess):
        executor.listen(hear)
    try:
        clock.tick(force=True)
        while open_cells and not stop():
            if _skip_needless(schedule, open_cells, state, out):
                clock.tick()
                continue
            _submit_ready(schedule, open_cells, state, executor, later)
            for event in executor.events(0.2):
                if isinstance(event, Done):
                    _end(event, out, open_cells, state, later)
                hear(event)
            clock.tick()
        return state
    finally:
        executor.close()
        state.running.clear()
        clock.tick(force=True)


def _collect(out: Path, open_cells: dict[str, Cell], state: State, *, retry_failed: bool) -> None:
    """Cells that have ended before."""
    for key in list(open_cells):
        record = ended(out / CELLS / key)
        if record is None or (retry_failed and record.status == FAILED):
            if record is not None:
                (out / CELLS / key / "record.json").unlink()
            continue
        state.ended[key] = Ended.of(record)
        del open_cells[key]


def _skip_needless(schedule: Schedule, open_cells: dict[str, Cell], state: State, out: Path) -> bool:
    skipped = False
    for key, cell in list(open_cells.items()):
        if key in state.running or not schedule.ready(cell, state.ended):
            continue
        if (why := schedule.needless(cell, state.ended)) is not None:
            ensure_writable(out / CELLS / key)
            record = write_plain(out / CELLS / key, blank_record(cell, SKIPPED, why))
            state.ended[key] = Ended.of(record)
            del open_cells[key]
            skipped = True
    return skipped


def _submit_ready(
    schedule: Schedule, open_cells: Mapping[str, Cell], state: State, executor: Executor, later: dict[str, float]
) -> None:
    for key, cell in open_cells.items():
        if len(state.running) >= executor.slots:
            return
        waits = later.get(key, 0.0) > time.monotonic()
        if key not in state.running and not waits and schedule.ready(cell, state.ended):
            state.running[key] = Running(cell=cell, since=time.monotonic())
            executor.submit(cell)


def _end(event: Done, out: Path, open_cells: dict[str, Cell], state: State, later: dict[str, float]) -> None:
    one = state.running.pop(event.key, None)
    if event.busy:
        later[event.key] = time.monotonic() + _AGAIN
    record = ended(out / CELLS / event.key)
    if record is not None:
        state.ended[event.key] = Ended.of(record)
        open_cells.pop(event.key, None)
        if one is not None and not event.busy:
            state.ran.setdefault(one.cell.attack, []).append(time.monotonic() - one.since)


class _Clock:
    """Tells watchers how far the campaign is, at most ten times a second, and the file once a second."""

    def __init__(self, out: Path, state: State, watch: Callable[[State], None] | None) -> None:
        self._out, self._state, self._watch = out, state, watch
        self._told = self._written = 0.0

    def tick(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self._watch is not None and (force or now - self._told >= 0.1):
            self._told = now
            self._watch(self._state)
        if force or now - self._written >= 1.0:
            self._written = now
            with replacing(self._out / PROGRESS) as part:
                part.write_text(json.dumps(self._state.to_json()) + "\n", encoding="utf-8")
