"""Figures as SVG text, drawn by hand: they scale, print, follow light and dark, and need no script.

Colours are left to the page's style sheet (classes ``axis``, ``line``, ``level-exact``, …). All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from markupsafe import Markup

from leakscope.audit.findings import Level

__all__ = ["Point", "Series", "comparison", "curves", "interval", "loss_curve", "pareto", "spectrum"]

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 14, 42
_MOST_POINTS: Final = 160
_FLOOR: Final = 1e-30
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


@dataclass(frozen=True, slots=True)
class _Axis:
    """A scale from values to a stretch of pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (_ln(self.low), _ln(self.high), _ln(value)) if self.log else (self.low, self.high, value)
        share = 0.5 if high == low else min(1.0, max(0.0, (at - low) / (high - low)))
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, -(-(last - first) // 5))
            return [10.0**power for power in range(first, last + 1, step)] or [self.low, self.high]
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        return [round(index * step, 12) for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


def loss_curve(trace: Sequence[Sequence[float]], kept: int | None) -> Markup:
    """Every measured loss, a line per restart, the kept one on top; empty where no loss was measured."""
    rows = [[value for value in row if math.isfinite(value)] for row in trace]
    values = [value for row in rows for value in row]
    if not values:
        return Markup("")
    log = min(values) > 0 and max(values) > 20 * min(values)
    x = _Axis(0, max(1, max(len(row) for row in rows) - 1), _LEFT, _WIDTH - _RIGHT)
    y = _vertical(min(values), max(values), log=log)
    chosen = kept if kept is not None and kept < len(rows) else 0
    lines = [
        _polyline([(x(step), y(value)) for step, value in _thinned(row)], "line kept" if index == chosen else "line")
        for index, row in sorted(enumerate(rows), key=lambda pair: pair[0] == chosen)
        if row
    ]
    return _figure("Loss over steps", [*_axes(x, y, "step", "loss"), *lines])


def spectrum(values: Sequence[float]) -> Markup:
    """Singular values of ∂g/∂x, largest first, in units in which 1 is the least that can be told from noise."""
    known = sorted((value for value in values if math.isfinite(value) and value > 0), reverse=True)
    if not known:
        return Markup("")
    floor = max(known[0], 1.0) * 1e-12
    known = [max(value, floor) for value in known]
    x = _Axis(1, max(2, len(known)), _LEFT, _WIDTH - _RIGHT)
    y = _vertical(min(known[-1], 0.5), max(known[0], 2.0), log=True)
    parts = _axes(x, y, "direction of the image, strongest first", "singular value")
    parts.append(_polyline([(x(rank + 1), y(value)) for rank, value in _thinned(known)], "line kept"))
    parts.append(_tag("line", cls="mark", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y(1.0), y2=y(1.0)))
    parts.append(_text("recoverable above", _WIDTH - _RIGHT, y(1.0) - 5, anchor="end"))
    return _figure("Singular values, strongest first", parts)


def pareto(points: Sequence[Point], cost_name: str) -> Markup:
    """Leakage against cost, a dot per defence; the line joins those that no other beats on both."""
    known = [point for point in points if math.isfinite(point.cost) and math.isfinite(point.leaked)]
    if len(known) < 2:
        return Markup("")
    low, high = min(p.cost for p in known), max(p.cost for p in known)
    room = 0.08 * ((high - low) or abs(high) or 1.0)
    x = _Axis(low - room, high + room, _LEFT, _WIDTH - _RIGHT)
    y = _Axis(-0.06, 1.06, _HEIGHT - _BOTTOM, _TOP)
    parts = _axes(x, y, cost_name, "images leaked", percent=True)
    front = [p for p in known if not any(_beats(other, p) for other in known)]
    front = sorted({(x(p.cost), y(p.leaked)) for p in front})
    if len(front) > 1:
        parts.append(_polyline(front, "line front"))
    for point in known:
        across, down = x(point.cost), y(point.leaked)
        parts.append(
            _tag("line", cls="whisker", x1=across, x2=across, y1=y(point.interval[0]), y2=y(point.interval[1]))
        )
        parts.append(_tag("circle", cls=f"dot level-{point.level.name.lower()}", cx=across, cy=down, r=6))
        right = across > _WIDTH * 0.7
        parts.append(_text(_short(point.name), across + (-9 if right else 9), down - 8, "end" if right else "start"))
    return _figure("Leakage against cost", parts)


def curves(places: Sequence[str], series: Sequence[Series], name: str, *, below: str, apart: int = 0) -> Markup:
    """Lines over places in an order; the last ``apart`` places do not continue it, and stand alone behind a gap."""
    known = [line for line in series if any(_known(value) for value in line.values)]
    values = [value for line in known for value in line.values if _known(value)]
    if not values or len(places) < 2:
        return Markup("")
    top = _TOP + _ROW * -(-len(known) // 2) + 6
    room = 8 + 4 * max(len(_short(place, 20)) for place in places)  # for names that are turned
    bottom = top + _HEIGHT - _BOTTOM - _TOP
    height = bottom + room + _BOTTOM // 2
    high = max(*values, 1.0) if max(values) <= 1 else max(values) * 1.05
    y = _Axis(min(*values, 0.0), high, bottom, top)
    x = _Axis(0, len(places) - 1 + (0.6 if apart else 0.0), _LEFT + 34, _WIDTH - _RIGHT - 24)
    last = len(places) - apart  # the first place that stands apart
    across = [x(index + (0.6 if index >= last else 0.0)) for index in range(len(places))]
    parts = _axes(
        _Axis(0, 1, _LEFT, _WIDTH - _RIGHT), y, below, name, height=height, top=top, bottom=bottom, columns=False
    )
    turned = Markup('<text class="tick" text-anchor="end" transform="translate({} {}) rotate(-32)">{}</text>')
    parts += [turned.format(at + 5, bottom + 15, _short(place, 20)) for at, place in zip(across, places, strict=True)]
    if 0 < apart < len(places):
        middle = (across[last - 1] + across[last]) / 2
        parts.append(_tag("line", cls="grid gap", x1=middle, x2=middle, y1=top, y2=bottom))
    for index, line in enumerate(known):
        cls = "plain" if line.plain else f"series series-{index % _COLOURS}"
        right, down = _LEFT + (index % 2) * (_WIDTH - _LEFT) / 2, _TOP + _ROW * (index // 2)
        parts.append(_tag("line", cls=f"line {cls}", x1=right, x2=right + 22, y1=down, y2=down))
        parts.append(_text(_short(line.name, 34), right + 28, down + 4))
        pairs = enumerate(zip(across, line.values, strict=True))
        dots = [(at, y(value), place) for place, (at, value) in pairs if _known(value)]
        joined = [(at, down) for at, down, place in dots if place < last]
        if len(joined) > 1:
            parts.append(_polyline(joined, f"line {cls}"))
        parts += [_tag("circle", cls=f"spot {cls}", cx=at, cy=down, r=3.5) for at, down, _ in dots]
    said = "; ".join(f"{line.name}: {_said(places, line.values)}" for line in known)
    return _figure(f"{name} by {below}. {said}", parts, height=height)


def comparison(rows: Sequence[tuple[str, float, float | None, Level]], metric: str) -> Markup:
    """One metric for every image: what the attack reached (dot) beside what came out without any leak (ring)."""
    rows = [row for row in rows if math.isfinite(row[1])][:40]
    values = [v for _, value, control, _ in rows for v in (value, control) if v is not None and math.isfinite(v)]
    if all(control is None or not math.isfinite(control) for _, _, control, _ in rows):
        return Markup("")  # nothing to compare with
    values += [0.0, 1.0] if max(values) <= 1 else []
    left, line = 150, 22
    height = _TOP + line * len(rows) + _BOTTOM
    room = 0.05 * (max(values) - min(values)) or 1.0
    x = _Axis(min(values) - room, max(values) + room, left, _WIDTH - _RIGHT)
    y = _Axis(0, 1, height - _BOTTOM, _TOP)
    parts = _axes(x, y, metric, "", left=left, height=height, rows=False)
    for index, (name, value, control, level) in enumerate(rows):
        down = _TOP + line * index + line / 2
        parts.append(_text(_short(name, 20), left - 8, down + 4, "end"))
        if control is not None and math.isfinite(control):
            parts.append(_tag("line", cls="whisker", x1=x(control), x2=x(value), y1=down, y2=down))
            parts.append(_tag("circle", cls="ring", cx=x(control), cy=down, r=4.5))
        parts.append(_tag("circle", cls=f"dot level-{level.name.lower()}", cx=x(value), cy=down, r=5))
    return _figure(f"{metric} of each image, and of its control", parts, height=height)


def interval(share: float, bounds: tuple[float, float], level: Level) -> Markup:
    """A share between 0 and 1 as a bar, its confidence interval as a line over it."""
    low, high, at = (min(1.0, max(0.0, v)) * 100 if math.isfinite(v) else 0.0 for v in (*bounds, share))
    parts = [
        _tag("rect", cls="track", x=0, y=0, width=100, height=8),
        _tag("rect", cls=f"fill level-{level.name.lower()}", x=0, y=0, width=round(at, 1), height=8),
        _tag("line", cls="whisker", x1=round(low, 1), x2=round(high, 1), y1=4, y2=4),
    ]
    body = Markup("").join(parts)
    return Markup('<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{}</svg>').format(
        body
    )


def _beats(other: Point, one: Point) -> bool:
    no_worse = other.cost <= one.cost and other.leaked <= one.leaked
    return no_worse and (other.cost < one.cost or other.leaked < one.leaked)


def _vertical(low: float, high: float, *, log: bool) -> _Axis:
    if low == high:
        low, high = (low / 2, high * 2) if log and low > 0 else (low - 0.5, high + 0.5)
    return _Axis(low, high, _HEIGHT - _BOTTOM, _TOP, log)


def _axes(
    x: _Axis,
    y: _Axis,
    below: str,
    beside: str,
    *,
    percent: bool = False,
    left: int = _LEFT,
    height: int = _HEIGHT,
    top: int = _TOP,
    bottom: int | None = None,
    rows: bool = True,
    columns: bool = True,
) -> list[Markup]:
    show: Callable[[float], str] = (lambda value: f"{value:.0%}") if percent else _tick
    bottom = height - _BOTTOM if bottom is None else bottom
    parts: list[Markup] = []
    for value in y.ticks() if rows else ():
        parts.append(_tag("line", cls="grid", x1=left, x2=_WIDTH - _RIGHT, y1=y(value), y2=y(value)))
        parts.append(_text(show(value), left - 8, y(value) + 4, "end"))
    for value in x.ticks() if columns else ():
        parts.append(_text(_tick(value), x(value), bottom + 17, "middle"))
        if not rows:
            parts.append(_tag("line", cls="grid", x1=x(value), x2=x(value), y1=_TOP, y2=bottom))
    parts.append(_tag("line", cls="axis", x1=left, x2=_WIDTH - _RIGHT, y1=bottom, y2=bottom))
    parts.append(_text(below, (left + _WIDTH - _RIGHT) / 2, height - 6, "middle", cls="name"))
    if beside:
        middle = (top + bottom) / 2
        turned = Markup('<text class="name" text-anchor="middle" transform="translate(12 {}) rotate(-90)">{}</text>')
        parts.append(turned.format(middle, beside))
    return parts


def _figure(title: str, parts: Sequence[Markup], *, height: int = _HEIGHT) -> Markup:
    frame = Markup('<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return frame.format(_WIDTH, height, title, Markup("").join(parts))


def _polyline(points: Sequence[tuple[float, float]], cls: str) -> Markup:
    if len(points) == 1:
        return _tag("circle", cls=f"{cls} single", cx=points[0][0], cy=points[0][1], r=3)
    return _tag("polyline", cls=cls, points=" ".join(f"{x:g},{y:g}" for x, y in points))


def _tag(name: str, *, cls: str, **attributes: float | str) -> Markup:
    pairs = Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in attributes.items())
    return Markup('<{} class="{}"{}/>').format(name, cls, pairs)


def _text(text: str, x: float, y: float, anchor: str = "start", cls: str = "tick") -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        cls, round(x, 1), round(y, 1), anchor, text
    )


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


def _tick(value: float) -> str:
    if value and (abs(value) >= 1e4 or abs(value) < 1e-3):
        mantissa, _, power = f"{value:.0e}".partition("e")
        digits = "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(c)] if c.isdigit() else "⁻" for c in str(int(power)))
        return f"10{digits}" if mantissa == "1" else f"{mantissa}·10{digits}"
    return f"{value:g}".replace("-", "−")


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _round_step(rough: float) -> float:
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * (1 - 1e-9))


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _said(places: Sequence[str], values: Sequence[float | None]) -> str:
    """``0.93 at conv1, 0.41 at conv2``."""
    pairs = zip(places, values, strict=True)
    return ", ".join(f"{_tick(float(f'{value:.3g}'))} at {place}" for place, value in pairs if _known(value))


def _ln(value: float) -> float:
    return math.log(max(value, _FLOOR))
