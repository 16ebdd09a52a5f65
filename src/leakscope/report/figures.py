"""Figures as SVG text, drawn by hand: they scale, print, follow light and dark, and need no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from markupsafe import Markup

from leakscope.audit.findings import Level
from leakscope.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    axes,
    figure,
    polyline,
    tag,
    text,
    tick,
    vertical,
)

__all__ = ["Point", "Series", "comparison", "curves", "interval", "loss_curve", "pareto", "spectrum"]

_MOST_POINTS: Final = 160
_ROW: Final = 18
"""The height of a line of a legend."""
_COLOURS: Final = 6
"""How many lines the style sheet tells apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One defence on the Pareto figure: its cost, the share of images it lets out with its interval, its verdict."""

    name: str
    cost: float
    leaked: float
    interval: tuple[float, float]
    level: Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line over named places: a value for each, or ``None`` where there is none. ``plain``: a line to compare with,
    without colour."""

    name: str
    values: Sequence[float | None]
    plain: bool = False


def loss_curve(trace: Sequence[Sequence[float]], kept: int | None) -> Markup:
    """Every measured loss, a line per restart, the kept one on top; empty where no loss was measured."""
    rows = [[value for value in row if math.isfinite(value)] for row in trace]
    values = [value for row in rows for value in row]
    if not values:
        return Markup("")
    log = min(values) > 0 and max(values) > 20 * min(values)
    x = Axis(0, max(1, max(len(row) for row in rows) - 1), LEFT, WIDTH - RIGHT)
    y = vertical(min(values), max(values), log=log)
    chosen = kept if kept is not None and kept < len(rows) else 0
    lines = [
        polyline([(x(step), y(value)) for step, value in _thinned(row)], "line kept" if index == chosen else "line")
        for index, row in sorted(enumerate(rows), key=lambda pair: pair[0] == chosen)
        if row
    ]
    return figure("Loss over steps", [*axes(x, y, "step", "loss"), *lines])


def spectrum(values: Sequence[float]) -> Markup:
    """Singular values of ∂g/∂x, largest first, in units in which 1 is the least that can be told from noise."""
    known = sorted((value for value in values if math.isfinite(value) and value > 0), reverse=True)
    if not known:
        return Markup("")
    floor = max(known[0], 1.0) * 1e-12
    known = [max(value, floor) for value in known]
    x = Axis(1, max(2, len(known)), LEFT, WIDTH - RIGHT)
    y = vertical(min(known[-1], 0.5), max(known[0], 2.0), log=True)
    parts = axes(x, y, "direction of the image, strongest first", "singular value")
    parts.append(polyline([(x(rank + 1), y(value)) for rank, value in _thinned(known)], "line kept"))
    parts.append(tag("line", cls="mark", x1=LEFT, x2=WIDTH - RIGHT, y1=y(1.0), y2=y(1.0)))
    parts.append(text("recoverable above", WIDTH - RIGHT, y(1.0) - 5, anchor="end"))
    return figure("Singular values, strongest first", parts)


def pareto(points: Sequence[Point], cost_name: str) -> Markup:
    """Leakage against cost, a dot per defence; the line joins those that no other beats on both."""
    known = [point for point in points if math.isfinite(point.cost) and math.isfinite(point.leaked)]
    if len(known) < 2:
        return Markup("")
    low, high = min(p.cost for p in known), max(p.cost for p in known)
    room = 0.08 * ((high - low) or abs(high) or 1.0)
    x = Axis(low - room, high + room, LEFT, WIDTH - RIGHT)
    y = Axis(-0.06, 1.06, HEIGHT - BOTTOM, TOP)
    parts = axes(x, y, cost_name, "images leaked", percent=True)
    front = [p for p in known if not any(_beats(other, p) for other in known)]
    front = sorted({(x(p.cost), y(p.leaked)) for p in front})
    if len(front) > 1:
        parts.append(polyline(front, "line front"))
    for point in known:
        across, down = x(point.cost), y(point.leaked)
        parts.append(tag("line", cls="whisker", x1=across, x2=across, y1=y(point.interval[0]), y2=y(point.interval[1])))
        parts.append(tag("circle", cls=f"dot level-{point.level.name.lower()}", cx=across, cy=down, r=6))
        right = across > WIDTH * 0.7
        parts.append(text(_short(point.name), across + (-9 if right else 9), down - 8, "end" if right else "start"))
    return figure("Leakage against cost", parts)


def curves(places: Sequence[str], series: Sequence[Series], name: str, *, below: str, apart: int = 0) -> Markup:
    """Lines over places in an order; the last ``apart`` places do not continue it, and stand alone behind a gap."""
    known = [line for line in series if any(_known(value) for value in line.values)]
    values = [value for line in known for value in line.values if _known(value)]
    if not values or len(places) < 2:
        return Markup("")
    top = TOP + _ROW * -(-len(known) // 2) + 6
    room = 8 + 4 * max(len(_short(place, 20)) for place in places)  # for names that are turned
    bottom = top + HEIGHT - BOTTOM - TOP
    height = bottom + room + BOTTOM // 2
    high = max(*values, 1.0) if max(values) <= 1 else max(values) * 1.05
    y = Axis(min(*values, 0.0), high, bottom, top)
    x = Axis(0, len(places) - 1 + (0.6 if apart else 0.0), LEFT + 34, WIDTH - RIGHT - 24)
    last = len(places) - apart  # the first place that stands apart
    across = [x(index + (0.6 if index >= last else 0.0)) for index in range(len(places))]
    parts = axes(Axis(0, 1, LEFT, WIDTH - RIGHT), y, below, name, height=height, top=top, bottom=bottom, columns=False)
    turned = Markup('<text class="tick" text-anchor="end" transform="translate({} {}) rotate(-32)">{}</text>')
    parts += [turned.format(at + 5, bottom + 15, _short(place, 20)) for at, place in zip(across, places, strict=True)]
    if 0 < apart < len(places):
        middle = (across[last - 1] + across[last]) / 2
        parts.append(tag("line", cls="grid gap", x1=middle, x2=middle, y1=top, y2=bottom))
    for index, line in enumerate(known):
        cls = "plain" if line.plain else f"series series-{index % _COLOURS}"
        right, down = LEFT + (index % 2) * (WIDTH - LEFT) / 2, TOP + _ROW * (index // 2)
        parts.append(tag("line", cls=f"line {cls}", x1=right, x2=right + 22, y1=down, y2=down))
        parts.append(text(_short(line.name, 34), right + 28, down + 4))
        pairs = enumerate(zip(across, line.values, strict=True))
        dots = [(at, y(value), place) for place, (at, value) in pairs if _known(value)]
        joined = [(at, down) for at, down, place in dots if place < last]
        if len(joined) > 1:
            parts.append(polyline(joined, f"line {cls}"))
        parts += [tag("circle", cls=f"spot {cls}", cx=at, cy=down, r=3.5) for at, down, _ in dots]
    said = "; ".join(f"{line.name}: {_said(places, line.values)}" for line in known)
    return figure(f"{name} by {below}. {said}", parts, height=height)


def comparison(rows: Sequence[tuple[str, float, float | None, Level]], metric: str) -> Markup:
    """One metric for every image: what the attack reached (dot) beside what came out without any leak (ring)."""
    rows = [row for row in rows if math.isfinite(row[1])][:40]
    values = [v for _, value, control, _ in rows for v in (value, control) if v is not None and math.isfinite(v)]
    if all(control is None or not math.isfinite(control) for _, _, control, _ in rows):
        return Markup("")  # nothing to compare with
    values += [0.0, 1.0] if max(values) <= 1 else []
    left, line = 150, 22
    height = TOP + line * len(rows) + BOTTOM
    room = 0.05 * (max(values) - min(values)) or 1.0
    x = Axis(min(values) - room, max(values) + room, left, WIDTH - RIGHT)
    y = Axis(0, 1, height - BOTTOM, TOP)
    parts = axes(x, y, metric, "", left=left, height=height, rows=False)
    for index, (name, value, control, level) in enumerate(rows):
        down = TOP + line * index + line / 2
        parts.append(text(_short(name, 20), left - 8, down + 4, "end"))
        if control is not None and math.isfinite(control):
            parts.append(tag("line", cls="whisker", x1=x(control), x2=x(value), y1=down, y2=down))
            parts.append(tag("circle", cls="ring", cx=x(control), cy=down, r=4.5))
        parts.append(tag("circle", cls=f"dot level-{level.name.lower()}", cx=x(value), cy=down, r=5))
    return figure(f"{metric} of each image, and of its control", parts, height=height)


def interval(share: float, bounds: tuple[float, float], level: Level) -> Markup:
    """A share between 0 and 1 as a bar, its confidence interval as a line over it."""
    low, high, at = (min(1.0, max(0.0, v)) * 100 if math.isfinite(v) else 0.0 for v in (*bounds, share))
    parts = [
        tag("rect", cls="track", x=0, y=0, width=100, height=8),
        tag("rect", cls=f"fill level-{level.name.lower()}", x=0, y=0, width=round(at, 1), height=8),
        tag("line", cls="whisker", x1=round(low, 1), x2=round(high, 1), y1=4, y2=4),
    ]
    body = Markup("").join(parts)
    return Markup('<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{}</svg>').format(
        body
    )


def _beats(other: Point, one: Point) -> bool:
    no_worse = other.cost <= one.cost and other.leaked <= one.leaked
    return no_worse and (other.cost < one.cost or other.leaked < one.leaked)


def _thinned(row: Sequence[float]) -> list[tuple[int, float]]:
    """At most so many points: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(row) <= _MOST_POINTS:
        return list(enumerate(row))
    kept: set[int] = {0, len(row) - 1}
    pieces = _MOST_POINTS // 2
    for piece in range(pieces):
        stretch = range(piece * len(row) // pieces, (piece + 1) * len(row) // pieces)
        kept |= {min(stretch, key=row.__getitem__), max(stretch, key=row.__getitem__)}
    return [(index, row[index]) for index in sorted(kept)]


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _said(places: Sequence[str], values: Sequence[float | None]) -> str:
    """``0.93 at conv1, 0.41 at conv2``."""
    pairs = zip(places, values, strict=True)
    return ", ".join(f"{tick(float(f'{value:.3g}'))} at {place}" for place, value in pairs if _known(value))
