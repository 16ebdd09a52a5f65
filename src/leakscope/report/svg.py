"""Scales, axes and shapes as SVG text, of which the report's figures are made.

Colours are left to the page's style sheet (classes ``axis``, ``line``, ``level-exact``, …). All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

__all__ = [
    "BOTTOM",
    "HEIGHT",
    "LEFT",
    "RIGHT",
    "TOP",
    "WIDTH",
    "Axis",
    "axes",
    "figure",
    "polyline",
    "tag",
    "text",
    "tick",
    "vertical",
]

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 42
_FLOOR: Final = 1e-30


@dataclass(frozen=True, slots=True)
class Axis:
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


def vertical(low: float, high: float, *, log: bool) -> Axis:
    if low == high:
        low, high = (low / 2, high * 2) if log and low > 0 else (low - 0.5, high + 0.5)
    return Axis(low, high, HEIGHT - BOTTOM, TOP, log)


def axes(
    x: Axis,
    y: Axis,
    below: str,
    beside: str,
    *,
    percent: bool = False,
    left: int = LEFT,
    height: int = HEIGHT,
    top: int = TOP,
    bottom: int | None = None,
    rows: bool = True,
    columns: bool = True,
) -> list[Markup]:
    show: Callable[[float], str] = (lambda value: f"{value:.0%}") if percent else tick
    bottom = height - BOTTOM if bottom is None else bottom
    parts: list[Markup] = []
    for value in y.ticks() if rows else ():
        parts.append(tag("line", cls="grid", x1=left, x2=WIDTH - RIGHT, y1=y(value), y2=y(value)))
        parts.append(text(show(value), left - 8, y(value) + 4, "end"))
    for value in x.ticks() if columns else ():
        parts.append(text(tick(value), x(value), bottom + 17, "middle"))
        if not rows:
            parts.append(tag("line", cls="grid", x1=x(value), x2=x(value), y1=TOP, y2=bottom))
    parts.append(tag("line", cls="axis", x1=left, x2=WIDTH - RIGHT, y1=bottom, y2=bottom))
    parts.append(text(below, (left + WIDTH - RIGHT) / 2, height - 6, "middle", cls="name"))
    if beside:
        middle = (top + bottom) / 2
        turned = Markup('<text class="name" text-anchor="middle" transform="translate(12 {}) rotate(-90)">{}</text>')
        parts.append(turned.format(middle, beside))
    return parts


def figure(title: str, parts: Sequence[Markup], *, height: int = HEIGHT) -> Markup:
    frame = Markup('<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return frame.format(WIDTH, height, title, Markup("").join(parts))


def polyline(points: Sequence[tuple[float, float]], cls: str) -> Markup:
    if len(points) == 1:
        return tag("circle", cls=f"{cls} single", cx=points[0][0], cy=points[0][1], r=3)
    return tag("polyline", cls=cls, points=" ".join(f"{x:g},{y:g}" for x, y in points))


def tag(name: str, *, cls: str, **attributes: float | str) -> Markup:
    pairs = Markup("").join(Markup(' {}="{}"').format(key, value) for key, value in attributes.items())
    return Markup('<{} class="{}"{}/>').format(name, cls, pairs)


def text(content: str, x: float, y: float, anchor: str = "start", cls: str = "tick") -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        cls, round(x, 1), round(y, 1), anchor, content
    )


def tick(value: float) -> str:
    if value and (abs(value) >= 1e4 or abs(value) < 1e-3):
        mantissa, _, power = f"{value:.0e}".partition("e")
        digits = "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(c)] if c.isdigit() else "⁻" for c in str(int(power)))
        return f"10{digits}" if mantissa == "1" else f"{mantissa}·10{digits}"
    return f"{value:g}".replace("-", "−")


def _round_step(rough: float) -> float:
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * (1 - 1e-9))


def _ln(value: float) -> float:
    return math.log(max(value, _FLOOR))
