"""The pictures of a study over several models: a row for each model, a column for each place along x."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from leakscope.audit.record import read_record
from leakscope.report.study_figure import read_study

__all__ = ["SHEET", "study_sheet"]

SHEET: Final = "sheet.png"


def study_sheet(folder: Path) -> Path | None:
    """The first image, as it was and as it came back everywhere; ``None`` where there are no rows of several models."""
    study = read_study(folder)
    x, series, metric = study["x"], study["series"], study["metric"]
    rows: dict[str, dict[Any, dict[str, Any]]] = {}
    for row in study["rows"]:
        if series in row["at"] and metric in row["metrics"]:
            rows.setdefault(str(row["at"][series]), {}).setdefault(row["at"][x], row)  # of several runs the first
    columns = list(dict.fromkeys(place for line in rows.values() for place in line))
    if series != "model" or len(rows) < 2:
        return None
    figure = Figure(figsize=(1.0 * (len(columns) + 2), 1.15 * len(rows) + 0.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for down, (name, line) in enumerate(rows.items()):
        first = next(iter(line.values()))
        original = read_record(folder / first["folder"]).pictures[0].original
        tiles = [("original", folder / first["folder"] / original)]
        for place in columns:
            if place in line:
                there = folder / line[place]["folder"]
                record = read_record(there)
                score = (record.metric(metric) or [float("nan")])[0]
                tiles.append((f"{place}: {score:.2f}", there / record.pictures[0].reconstruction))
        for across, (title, path) in enumerate(tiles):
            axes = figure.add_subplot(len(rows), len(columns) + 1, down * (len(columns) + 1) + across + 1)
            with Image.open(path) as picture:
                axes.imshow(picture.convert("RGB"), interpolation="nearest")
            axes.set_title(title, fontsize=6, pad=2)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if not across:
                axes.set_ylabel(name.partition(":")[2] or name, fontsize=6)
    figure.savefig(folder / SHEET)
    return folder / SHEET
