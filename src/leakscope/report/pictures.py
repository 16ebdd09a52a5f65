"""Pictures from a stored record: the contact sheet of originals and reconstructions, and the loss curve."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from leakscope.audit.record import Record, read_record
from leakscope.errors import BadInput
from leakscope.report.caption import client_line, number, run_line, title
from leakscope.report.sheet import draw_sheet

__all__ = ["CONTACT_SHEET", "LOSS_CURVE", "contact_sheet", "loss_curve", "overview", "saved"]

CONTACT_SHEET: Final = "contact-sheet.png"
LOSS_CURVE: Final = "loss.png"

_KEPT, _OTHER, _INK = "#1f4e8c", "#b8bec8", "#30343b"


def contact_sheet(folder: Path) -> Path:
    """Draw every original beside its reconstruction, with scores, from the record in ``folder``; returns the file.

    Small images are enlarged by whole factors without smoothing: what one sees is what the attack brought back.
    """
    return overview(folder, [folder])


def overview(folder: Path, parts: Sequence[Path]) -> Path:
    """One contact sheet in ``folder`` for the records of several folders, one below the other."""
    records = [(part, read_record(part)) for part in parts]
    for part, record in records:
        if not record.pictures:
            raise BadInput(f"The run in '{part}' brought back no pictures: {record.error or record.message}")
    sheet = draw_sheet(records)
    return saved(folder / CONTACT_SHEET, lambda path: sheet.save(path, format="PNG", optimize=True))


def loss_curve(folder: Path) -> Path:
    """Draw the losses measured in the run of ``folder``, a line per restart, the kept one on top; returns the file."""
    record = read_record(folder)
    if not any(record.trace):
        raise BadInput(f"The run in '{folder}' measured no losses, so there is no curve: {record.attack} has no loop.")
    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    kept = record.restart if record.restart is not None and record.restart < len(record.trace) else 0
    for index, row in sorted(enumerate(record.trace), key=lambda pair: pair[0] == kept):
        best = index == kept
        label = _label(record, best) if best or index == (1 if kept == 0 else 0) else None
        axes.plot(
            range(1, len(row) + 1),
            row,
            color=_KEPT if best else _OTHER,
            linewidth=1.6 if best else 0.9,
            marker="o" if len(row) == 1 else "",
            markersize=4,
            label=label,
            zorder=3 if best else 2,
        )
    if math.isfinite(record.energy):
        axes.axhline(record.energy, color=_KEPT, linewidth=0.8, linestyle=(0, (4, 4)), zorder=1)
    values = [value for row in record.trace for value in row if math.isfinite(value)]
    if values and min(values) > 0:
        axes.set_yscale("log")
        if max(values) / min(values) < 1e4:  # over few decades, plain numbers read better than powers of ten
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(_tick))
            axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("step")
    axes.set_ylabel("attack loss (the attacker's own measure)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    axes.grid(visible=True, which="major", color="#e6e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=_INK, which="both")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.set_title(title(record), loc="left", fontsize=11, fontweight="bold", color=_INK, pad=22)
    axes.text(0, 1.03, f"{client_line(record)}; {run_line(record)}", transform=axes.transAxes, fontsize=8, color=_INK)
    return saved(folder / LOSS_CURVE, lambda path: figure.savefig(path, format="png"))


def _tick(value: float, position: int | None) -> str:
    return f"{value:g}"


def _label(record: Record, best: bool) -> str:
    several = len(record.trace) > 1
    if not best:
        return "other restarts" if len(record.trace) > 2 else "other restart"
    which = f"restart {record.restart}, kept: " if several else ""
    return f"{which}lowest loss {number(record.energy)}"


def saved(path: Path, save: Callable[[Path], object]) -> Path:
    """Write a picture in one move."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save(part)
        part.replace(path)
    except OSError as error:
        raise BadInput(f"Cannot write '{path}': {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return path
