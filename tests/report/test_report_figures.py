"""Figures: well-formed whatever the numbers, escaped whatever the names, and in the right place."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign_folder import HOSTILE
from leakscope.audit.findings import Level
from leakscope.report import figures

ANY = st.floats(allow_nan=True, allow_infinity=True)


def _lines(text: str) -> list[list[tuple[float, float]]]:
    found = ElementTree.fromstring(text).iter("polyline")
    return [[tuple(float(v) for v in p.split(",")) for p in line.get("points", "").split()] for line in found]


@given(st.lists(st.lists(ANY, max_size=8), max_size=4), st.one_of(st.none(), st.integers(0, 5)))
def test_any_trace_gives_a_curve_or_nothing(trace: list[list[float]], kept: int | None) -> None:
    text = figures.loss_curve(trace, kept)
    if any(math.isfinite(value) for row in trace for value in row):
        ElementTree.fromstring(text)
        assert "nan" not in text
        assert "inf" not in text.replace("infinity", "")
    else:
        assert text == ""


@given(st.lists(ANY, max_size=12))
def test_any_spectrum_gives_a_curve_or_nothing(values: list[float]) -> None:
    text = figures.spectrum(values)
    assert text == "" or ElementTree.fromstring(text) is not None


def test_the_spectrum_crosses_its_line_where_recovery_ends() -> None:
    text = figures.spectrum([100.0, 10.0, 1.0, 0.1])
    (line,) = _lines(text)
    (mark,) = [one for one in ElementTree.fromstring(text).iter("line") if one.get("class") == "mark"]
    heights = [y for _, y in line]
    assert heights[1] < float(mark.get("y1", 0)) == heights[2] < heights[3]


@given(ANY, ANY, ANY)
def test_any_share_gives_a_bar(share: float, low: float, high: float) -> None:
    widths = re.findall(r'width="([\d.]+)"', figures.interval(share, (low, high), Level.TRACES))
    assert all(0 <= float(width) <= 100 for width in widths)


def test_the_kept_restart_is_drawn_last_and_falls() -> None:
    text = figures.loss_curve([[1.0, 0.1, 0.01], [1.0, 0.5, 0.3]], 0)
    drawn = ElementTree.fromstring(text).findall("polyline")
    assert [line.get("class") for line in drawn] == ["line", "line kept"]
    heights = [y for _, y in _lines(text)[1]]
    assert heights == sorted(heights)  # down the page is down the axis


def test_a_long_trace_is_thinned_and_keeps_its_spike() -> None:
    trace = [1.0] * 50_000
    trace[31_234] = 900.0
    (line,) = _lines(figures.loss_curve([trace], 0))
    assert len(line) < 300
    assert len({y for _, y in line}) == 2


def test_the_front_joins_what_nothing_beats() -> None:
    def point(name: str, cost: float, leaked: float) -> figures.Point:
        return figures.Point(name=name, cost=cost, leaked=leaked, interval=(leaked, leaked), level=Level.TRACES)

    points = [point("none", 0.0, 1.0), point("bad", 0.5, 1.0), point("good", 0.4, 0.5), point("dear", 1.0, 0.0)]
    (front,) = _lines(figures.pareto(points, "cost"))
    assert len(front) == 3
    assert figures.pareto(points[:1], "cost") == ""


@pytest.mark.parametrize("name", [HOSTILE, "x" * 400, ""])
def test_names_are_escaped_and_cut(name: str) -> None:
    point = figures.Point(name=name, cost=0.1, leaked=0.5, interval=(0.1, 0.9), level=Level.EXACT)
    other = figures.Point(name="b", cost=0.2, leaked=0.1, interval=(0.0, 0.9), level=Level.EXACT)
    for text in (
        figures.pareto([point, other], name),
        figures.comparison([(name, 0.9, 0.1, Level.EXACT), ("b", 0.8, None, Level.TRACES)], name),
    ):
        assert {node.tag for node in ElementTree.fromstring(text).iter()} <= {
            "svg",
            "text",
            "line",
            "circle",
            "polyline",
        }


def test_a_comparison_shows_attack_and_control() -> None:
    text = figures.comparison([("a", 0.9, 0.1, Level.EXACT), ("b", 0.5, math.nan, Level.TRACES)], "SSIM")
    circles = [node.get("class") for node in ElementTree.fromstring(text).iter("circle")]
    assert circles == ["ring", "dot level-exact", "dot level-traces"]
    assert figures.comparison([("a", math.nan, 0.1, Level.EXACT)], "SSIM") == ""
