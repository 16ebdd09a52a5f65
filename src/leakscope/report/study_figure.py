"""The figure of a study, from its stored result."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, cast

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from leakscope.audit.record import read_record
from leakscope.errors import BadInput

__all__ = ["FIGURE", "PARETO", "pareto_figure", "read_study", "study_figure"]

FIGURE: Final = "figure.png"
PARETO: Final = "pareto.png"
_COLOURS: Final = ("#1f4e8c", "#c2571a", "#3a7d44", "#7b4ba0", "#9a7d0a", "#5a6572")
_UNITS: Final = {"psnr": "PSNR in dB", "ssim": "SSIM", "mse": "MSE", "lpips": "LPIPS"}


def pareto_figure(folder: Path) -> Path | None:
    """Leakage against accuracy, a point for each defence under the server that got most; the best trade-offs joined.

    ``None`` where the study has not measured what its points cost.
    """
    study = read_study(folder)
    found: dict[str, tuple[float, float]] = {}  # name -> (accuracy, leakage)
    metric = study["metric"]
    for row in study["rows"]:
        if "accuracy" in row["extra"] and metric in row["best"]:
            name = str(row["at"][study["x"]])
            leaked = max(min(float(row["best"][metric]), 100.0), found.get(name, (0.0, 0.0))[1])
            found[name] = (float(row["extra"]["accuracy"]), leaked)
    if len(found) < 2:
        return None
    kept = [
        n for n, (a, k) in found.items() if not any(b >= a and j <= k and (b, j) != (a, k) for b, j in found.values())
    ]
    figure, axes = _canvas((8.0, 5.2))
    for name, (accuracy, leaked) in found.items():
        colour = _COLOURS[0] if name in kept else "#9aa1ab"
        axes.plot(accuracy, leaked, "o", color=colour, zorder=3)
        axes.annotate(name, (accuracy, leaked), xytext=(5, 3), textcoords="offset points", fontsize=7, color=colour)
    front = sorted(found[name] for name in kept)
    axes.plot([a for a, _ in front], [k for _, k in front], "-", color=_COLOURS[0], alpha=0.4)
    axes.set_xlabel("accuracy of a small network trained with the defence (more is better)")
    axes.set_ylabel(f"{_UNITS.get(metric, metric)} of the most exposed image (less is safer)")
    axes.set_title(f"{study['study']}: {study['attack']} on {study['model']}", fontsize=10, loc="left")
    figure.savefig(folder / PARETO)
    return folder / PARETO


def read_study(folder: Path) -> dict[str, Any]:
    """What a study has stored in its folder."""
    try:
        study = cast("dict[str, Any]", json.loads((folder / "study.json").read_text(encoding="utf-8")))
        _ = study["rows"], study["x"], study["series"], study["metric"]
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"'{folder}' holds no study that can be read: {error}.") from error
    return study


def _place(row: dict[str, Any], series: str | None) -> str:
    """Where a row's bar stands: its coordinates on all axes but the one that colours are for."""
    return ", ".join(str(value) for key, value in row["at"].items() if key != series)


def _canvas(size: tuple[float, float]) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def _ordered_figure(folder: Path, study: dict[str, Any]) -> Path:
    """A line over names in their order; below, one image as it was and as it came back at each of them."""
    x, metric = study["x"], study["metric"]
    shown = [row for row in study["rows"] if metric in row["metrics"]]
    figure = Figure(figsize=(max(8.0, 1.15 * (len(shown) + 1)), 6.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, max(1, len(shown) + 1), height_ratios=(3, 1))
    axes = figure.add_subplot(grid[0, :])
    axes.spines[["top", "right"]].set_visible(False)
    names = [str(row["at"][x]) for row in study["rows"]]
    where = [names.index(str(row["at"][x])) for row in shown]
    for key, style, label in (("metrics", "o-", "mean"), ("best", ":", "most exposed image")):
        values = [min(float(row[key][metric]), 150.0) for row in shown]
        axes.plot(where, values, style, color=_COLOURS[0], label=label)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
    axes.set_ylabel(str(_UNITS.get(metric, metric)))
    axes.grid(axis="y", color="#e4e7ec")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(f"{study['study']}: {study['attack']} on {study['model']}", fontsize=10, loc="left")
    for column, (name, path) in enumerate(_strip(folder, shown, x, metric)):
        tile = figure.add_subplot(grid[1, column])
        with Image.open(path) as picture:
            tile.imshow(picture.convert("RGB"), interpolation="nearest")
        tile.set_title(name, fontsize=7)
        tile.set_axis_off()
    figure.savefig(folder / FIGURE)
    return folder / FIGURE


def _strip(folder: Path, rows: list[dict[str, Any]], x: str, metric: str) -> list[tuple[str, Path]]:
    """The picture that came back best anywhere: the original, then what each row made of it."""
    records = [(row, folder / row["folder"], read_record(folder / row["folder"])) for row in rows]
    scored = [
        (value if record.scores["higher_is_better"][metric] else -value, index)
        for _, _, record in records
        for index, value in enumerate(record.metric(metric) or ())
        if not math.isnan(value)
    ]
    if not scored:
        return []
    _, index = max(scored)
    first = records[0][1] / records[0][2].pictures[index].original
    made = [(str(row["at"][x]), place / record.pictures[index].reconstruction) for row, place, record in records]
    return [("original", first), *made]


def study_figure(folder: Path) -> Path:
    """Draw the study in ``folder``: lines over numbers and ordered names, bars over others; returns the file."""
    study = read_study(folder)
    if study.get("ordered"):
        return _ordered_figure(folder, study)
    rows, x, series, metric = study["rows"], study["x"], study["series"], study["metric"]
    figure, axes = _canvas((8.0, max(4.4, 0.3 * len({_place(row, series) for row in rows}))))
    shown = [row for row in rows if metric in row["metrics"]]
    blank = [row for row in shown if f"{metric} of the mean image" in row["extra"]]
    numeric = all(isinstance(row["at"][x], int | float) for row in rows)
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in shown:
        lines.setdefault(str(row["at"].get(series, "")) if series else "", []).append(row)
    if numeric:
        for colour, (name, points) in zip(_COLOURS * 9, lines.items(), strict=False):
            where = [row["at"][x] for row in points]
            axes.plot(where, [float(r["metrics"][metric]) for r in points], "o-", color=colour, label=name or "mean")
            if len(lines) == 1:
                axes.plot(where, [float(r["best"][metric]) for r in points], ":", color=colour, label="most exposed")
        before = {row["at"][x]: row["extra"] for row in shown if f"{metric} before" in row["extra"]}
        if before:
            values = [float(extra[f"{metric} before"]) for extra in before.values()]
            axes.plot(list(before), values, "--", color="#8a919c", label="before the attack")
        axes.set_xlabel(x)
    else:
        places = list(dict.fromkeys(_place(row, series) for row in rows))
        width = 0.8 / max(1, len(lines))
        for index, (name, points) in enumerate(lines.items()):
            offset = (index - (len(lines) - 1) / 2) * width
            bars: dict[str, list[float]] = {}  # runs at the same place are averaged
            for row in points:
                bars.setdefault(_place(row, series), []).append(min(float(row["metrics"][metric]), 150.0))
            axes.barh(
                [places.index(place) + offset for place in bars],
                [sum(values) / len(values) for values in bars.values()],
                height=width * 0.9,
                color=_COLOURS[index % len(_COLOURS)],
                label=name or None,
            )
        if blank:
            values = [float(row["extra"][f"{metric} of the mean image"]) for row in blank]
            where = [places.index(_place(row, series)) for row in blank]
            axes.plot(values, where, "|", markersize=12, color="#30343b", label="the mean image")
        axes.set_yticks(range(len(places)), places)
        axes.invert_yaxis()
    label = str(_UNITS.get(metric, metric))
    (axes.set_ylabel if numeric else axes.set_xlabel)(label)
    if len(lines) > 1 or numeric or blank:
        axes.legend(frameon=False, fontsize=8)
    axes.grid(axis="y" if numeric else "x", color="#e4e7ec")
    axes.set_title(f"{study['study']}: {study['attack']} on {study['model']}", fontsize=10, loc="left")
    figure.savefig(folder / FIGURE)
    return folder / FIGURE
