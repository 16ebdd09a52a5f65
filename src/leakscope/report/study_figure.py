"""The figure of a study, from its stored result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, cast

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from leakscope.errors import BadInput

__all__ = ["FIGURE", "study_figure"]

FIGURE: Final = "figure.png"
_COLOURS: Final = ("#1f4e8c", "#c2571a", "#3a7d44", "#7b4ba0", "#9a7d0a", "#5a6572")
_UNITS: Final = {"psnr": "PSNR in dB", "ssim": "SSIM", "mse": "MSE", "lpips": "LPIPS"}


def study_figure(folder: Path) -> Path:
    """Draw the study in ``folder``: lines over numbers, bars over names; returns the file."""
    try:
        study = cast("dict[str, Any]", json.loads((folder / "study.json").read_text(encoding="utf-8")))
        rows, x, series, metric = study["rows"], study["x"], study["series"], study["metric"]
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"'{folder}' holds no study that can be read: {error}.") from error
    figure = Figure(figsize=(8.0, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = [row for row in rows if metric in row["metrics"]]
    numeric = all(isinstance(row["at"][x], int | float) for row in rows)
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in shown:
        lines.setdefault(str(row["at"].get(series, "")) if series else "", []).append(row)
    if numeric:
        for colour, (name, points) in zip(_COLOURS * 9, lines.items(), strict=False):
            where = [row["at"][x] for row in points]
            axes.plot(where, [float(r["metrics"][metric]) for r in points], "o-", color=colour, label=name or "mean")
            axes.plot(where, [float(r["best"][metric]) for r in points], ":", color=colour, label="most exposed image")
        before = [row for row in shown if f"{metric} before" in row["extra"]]
        if before:
            values = [float(row["extra"][f"{metric} before"]) for row in before]
            axes.plot([row["at"][x] for row in before], values, "--", color="#8a919c", label="before the attack")
        axes.set_xlabel(x)
    else:
        places = list(dict.fromkeys(str(row["at"][x]) for row in rows))
        width = 0.8 / max(1, len(lines))
        for index, (name, points) in enumerate(lines.items()):
            offset = (index - (len(lines) - 1) / 2) * width
            axes.barh(
                [places.index(str(row["at"][x])) + offset for row in points],
                [min(float(row["metrics"][metric]), 150.0) for row in points],
                height=width * 0.9,
                color=_COLOURS[index % len(_COLOURS)],
                label=name or None,
            )
        axes.set_yticks(range(len(places)), places)
        axes.invert_yaxis()
    label = str(_UNITS.get(metric, metric))
    (axes.set_ylabel if numeric else axes.set_xlabel)(label)
    if len(lines) > 1 or numeric:
        axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y" if numeric else "x", color="#e4e7ec")
    axes.set_axisbelow(True)
    axes.set_title(f"{study['study']}: {study['attack']} on {study['model']}", fontsize=10, loc="left")
    figure.savefig(folder / FIGURE)
    return folder / FIGURE
