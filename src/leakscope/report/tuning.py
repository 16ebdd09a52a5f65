"""The history of a tuning as a picture, from its ``tuned.json``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from leakscope.audit.tuned import COMPLETE, TUNED, read_tuned
from leakscope.report.pictures import saved

__all__ = ["HISTORY", "tuning_history"]

HISTORY: Final = "tuning.png"
_DONE, _PRUNED, _INK = "#1f4e8c", "#b8bec8", "#30343b"


def tuning_history(folder: Path) -> Path:
    """Draw what every trial reached, and the best so far; returns the file."""
    tuned = read_tuned(folder / TUNED)
    done = [(row.slot + 1, row.value) for row in tuned.rows if row.state == COMPLETE and row.value is not None]
    given_up = [(row.slot + 1, row.value) for row in tuned.rows if row.state != COMPLETE and row.value is not None]
    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*_columns(done), "o", color=_DONE, markersize=5, label="complete")
    axes.plot(*_columns(given_up), "x", color=_PRUNED, markersize=5, label="pruned, at its last report")
    best, line = (-math.inf if tuned.upper_bound else math.inf), list[float]()
    for _, value in done:
        best = max(best, value) if tuned.upper_bound else min(best, value)
        line.append(best)
    axes.step([slot for slot, _ in done], line, where="post", color=_DONE, linewidth=1.2, label="best so far")
    values = [value for _, value in (*done, *given_up)]
    if values and min(values) > 0 and not tuned.upper_bound:
        axes.set_yscale("log")
    axes.set_xlabel("trial")
    axes.set_ylabel("SSIM to the originals (oracle)" if tuned.upper_bound else "matching loss (attacker's own)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, which="major", color="#e6e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=_INK, which="both")
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(f"{tuned.attack}, tuned", loc="left", fontsize=11, fontweight="bold", color=_INK, pad=22)
    axes.text(0, 1.03, tuned.measure, transform=axes.transAxes, fontsize=8, color=_INK)
    return saved(folder / HISTORY, lambda path: figure.savefig(path, format="png"))


def _columns(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [slot for slot, _ in points], [value for _, value in points]
