"""How long a campaign will take, from one measured step of each kind, before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from leakscope.attacks.configure import configured
from leakscope.audit.cell import Cell
from leakscope.audit.cell_run import run_cell
from leakscope.types import Progress

__all__ = ["estimate"]


def estimate(
    cells: Sequence[Cell], base: Path, *, told: Callable[[int, int], None] = lambda done, total: None
) -> Mapping[str, float]:
    """Seconds for each cell by its key.

    A cell of each kind (model, client, batch shape, attack) makes two steps: what lies between them is the time of a
    step, the rest what comes before and after. Closed forms and analyses are run as they are. An upper bound: a ladder
    stops early where a lower rung settles the target.
    """
    kinds: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        kinds.setdefault(_kind(cell), []).append(cell)
    found: dict[str, float] = {}
    for index, same in enumerate(kinds.values()):
        told(index, len(kinds))
        seconds = _measured(same[0], base)
        found |= {cell.key: seconds for cell in same}
    told(len(kinds), len(kinds))
    return found


def _kind(cell: Cell) -> tuple[object, ...]:
    tables = (cell.model, cell.client, cell.defences, cell.options)
    return (*map(repr, tables), cell.images.get("batch_size"), cell.attack, cell.rounds)


def _measured(cell: Cell, base: Path) -> float:
    steps = getattr(configured(cell.attack, cell.options), "steps", None) if cell.attack else None
    short = cell
    if isinstance(steps, int):
        short = replace(cell, options={**cell.options, "steps": min(2, steps)})
    times: list[float] = []
    expected = 0

    def hear(progress: Progress) -> None:
        nonlocal expected
        times.append(time.monotonic())
        expected = (
            progress.steps * progress.restarts
        )  # an attack may make several runs, of more steps than its option says

    with TemporaryDirectory(prefix="leakscope-") as folder:
        began = time.monotonic()
        run_cell(short, Path(folder) / "cell", base=base, callback=hear)
        whole = time.monotonic() - began
    if isinstance(steps, int) and len(times) >= 2:
        step = median(after - before for before, after in pairwise(times))
        whole += (expected * steps / min(2, steps) - len(times)) * step
    return min(whole, cell.seconds) if cell.seconds is not None else whole
