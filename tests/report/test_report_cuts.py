"""Leakage by cut: in the order of the model's depth, with the pictures, and nothing that redaction withholds."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image

from campaign_folder import HOSTILE, build
from leakscope.audit.cell import CELLS, Cell, Role
from leakscope.audit.record import Picture
from leakscope.report import figures
from leakscope.report.album import Album
from leakscope.report.cuts import CutCurve, cut_curves
from leakscope.report.html import render
from leakscope.report.load import Audit, load
from leakscope.report.redact import redact

# client: its cut, the depth of that, and the SSIM of two images by two attacks
CLIENTS = {
    "deep": ("conv3", 7, (0.2, 0.1), None),
    "shallow": ("conv1", 1, (0.9, 0.8), (0.5, 0.4)),
    "middle": ("conv2" + HOSTILE, 4, (0.4, 0.6), (0.3, 0.3)),
    "sgd": ("", None, (0.7, 0.5), None),
}


def sweep(folder: Path) -> Audit:
    """A campaign whose clients are cut in three places, named in no order, and one that sends gradients."""
    audit = load(build(folder))
    key, cell = next((k, c) for k, c in audit.cells.items() if c.role is Role.ATTACK)
    record, cells, records = audit.records[key], {}, {}

    def add(one: Cell, scores: tuple[float, ...], depth: int | None) -> None:
        cells[one.key] = one
        place = folder / CELLS / one.key
        place.mkdir(exist_ok=True)
        for index, score in enumerate(scores):
            for name in ("original", "reconstruction"):
                Image.fromarray(np.full((8, 8, 3), int(255 * score), np.uint8)).save(place / f"{name}-{index}.png")
        pictures = tuple(
            Picture(
                name=f"private-{index}",
                label=0,
                recovered_label=0,
                original=f"original-{index}.png",
                reconstruction=f"reconstruction-{index}.png",
            )
            for index in range(len(scores))
        )
        known = {"metrics": {"ssim": list(scores), "mse": [0.1, 0.1]}, "higher_is_better": {"ssim": True, "mse": False}}
        records[one.key] = replace(record, depth=depth, scores=known, pictures=pictures)

    for client, (cut, depth, *attacks) in CLIENTS.items():
        table = {"type": "split", "cut": cut} if cut else {"type": "fedsgd"}
        for name, scores in zip(("dci", "decoder"), attacks, strict=True):
            one = replace(cell, target=f"net/photos/{client}", model_name="net", client_name=client, client=table)
            one = replace(one, attack_name=name, attack=name, options={})
            if scores is not None:
                add(one, scores, depth)
                add(replace(one, role=Role.CONTROL), (0.1, 0.1), depth)
    return replace(audit, cells=cells, records=records)


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return sweep(tmp_path_factory.mktemp("cuts"))


def curve_of(audit: Audit) -> CutCurve:
    (curve,) = cut_curves(audit, Album(audit, limit=1_000_000))
    return curve


def test_cuts_stand_in_the_order_of_depth_and_gradients_apart(audit: Audit) -> None:
    curve = curve_of(audit)
    assert (curve.title, curve.metric) == ("net · photos · none · server", "SSIM")
    assert [place for place, _, _ in curve.strip] == ["original", "conv1", "conv2" + HOSTILE, "conv3", "gradient"]
    root = ElementTree.fromstring(curve.figure)
    lines = {line.get("class"): line.get("points", "").split() for line in root.iter("polyline")}
    assert {name: len(points) for name, points in lines.items()} == {
        "line series series-0": 3,
        "line series series-1": 2,
        "line plain": 3,
    }
    heights = [float(point.split(",")[1]) for point in lines["line series series-0"]]
    assert heights == sorted(heights)  # SSIM falls with depth, and y grows downwards
    dots = [one for one in root.iter("circle") if one.get("class") == "spot series series-0"]
    assert len(dots) == 4  # the gradient's, too, which no line leads to
    assert "dci: 0.85 at conv1, 0.5 at conv2" in root.get("aria-label", "")
    assert "0.6 at gradient; decoder: 0.45 at conv1" in root.get("aria-label", "")


def test_the_strip_is_one_image_and_the_best_of_it(audit: Audit) -> None:
    curve = curve_of(audit)
    assert curve.image == "private-0"
    assert [score for _, score, _ in curve.strip] == ["", *(f"SSIM {s}, dci" for s in ("0.9", "0.4", "0.2", "0.7"))]
    assert all(shot.src and shot.alt.endswith("private-0") for _, _, shot in curve.strip)


def test_the_page_escapes_and_the_redacted_one_withholds(audit: Audit) -> None:
    page = render(audit)
    section = re.search(r'<section class="wrap" id="cuts">.*?</section>', page, re.S)
    assert section is not None
    assert "<script>" not in section.group()
    assert "conv2&lt;script&gt;" in section.group()
    assert section.group().count("<img ") == 5
    hidden = curve_of(redact(audit))
    assert hidden.image.startswith("image ")
    assert [shot.src for _, _, shot in hidden.strip] == [""] * 5
    assert 'id="cuts"' not in render(load(audit.folder))  # no client of that campaign sends features


def test_a_curve_needs_two_places() -> None:
    line = figures.Series(name="dci", values=[0.5])
    assert figures.curves(["conv1"], [line], "SSIM", below="cut") == Markup("")
    assert figures.curves(["a", "b"], [replace(line, values=[None, float("nan")])], "SSIM", below="cut") == Markup("")
