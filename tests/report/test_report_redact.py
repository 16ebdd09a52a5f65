"""What a redacted report may not hold: looked for in the data, in every file made of it, and in the pixels."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from campaign_folder import NAMES, build
from leakscope.audit.cell import CELLS, Role
from leakscope.audit.findings import Level
from leakscope.report.export import csv_text, json_text
from leakscope.report.html import file_name, render
from leakscope.report.load import Audit, load
from leakscope.report.redact import redact, shows_reconstruction

SIZE = 24


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return load(build(tmp_path_factory.mktemp("campaign"), size=SIZE))


def _pixels(text: str) -> list[np.ndarray]:
    found = re.findall(r"data:image/\w+;base64,([A-Za-z0-9+/=]+)", text)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB")).astype(float) for one in found]


def _stored(audit: Audit, name: str, *, hidden: bool) -> list[np.ndarray]:
    """Stored pictures of cells whose reconstructions must (not) be shown."""
    levels = audit.levels()
    shown: list[np.ndarray] = []
    for key, cell in audit.cells.items():
        if shows_reconstruction(cell.role, levels.get(key)) != hidden:
            for path in sorted((audit.folder / CELLS / key).glob(f"{name}-*.png")):
                shown.append(np.asarray(Image.open(path).convert("RGB")).astype(float))
    return shown


def _is_in(one: np.ndarray, many: list[np.ndarray]) -> bool:
    return any(one.shape == other.shape and np.abs(one - other).mean() < 3 for other in many)


@pytest.mark.parametrize("make", [render, csv_text, json_text])
def test_no_name_path_label_or_digest_is_left(audit: Audit, make) -> None:
    open_text, text = make(audit), make(redact(audit))
    for name in (*NAMES, "alice", "ward-7"):
        assert name in open_text
        assert name not in text
    for secret in ("/secret", "d1935700", "Traceback (most", "boom", *audit.cells):
        assert secret not in text
    assert "image 1" in text
    if make is render:
        assert "74 ≠ 73" in open_text
        assert "73" not in re.sub(r"data:image\S+|<style>.*?</style>|[\d.]+,[\d.]+|=\"[^\"]*\"", "", text, flags=re.S)
        assert "not recovered" in text
        assert "Redacted for sharing." in text
        assert "Redacted for sharing." not in open_text


def test_no_original_and_nothing_recognisable_is_left_in_the_pixels(audit: Audit) -> None:
    before, after = _pixels(render(audit)), _pixels(render(redact(audit)))
    originals = _stored(audit, "original", hidden=True) + _stored(audit, "original", hidden=False)
    secrets = originals + _stored(audit, "reconstruction", hidden=True)
    allowed = _stored(audit, "reconstruction", hidden=False)
    assert any(_is_in(one, originals) for one in before)  # the check can fail
    assert not any(_is_in(one, secrets) for one in after)
    assert after
    assert all(_is_in(one, allowed) for one in after)


def test_only_what_shows_nothing_is_shown() -> None:
    assert shows_reconstruction(Role.CONTROL, None)
    assert shows_reconstruction(Role.ATTACK, Level.NOTHING)
    for level in (Level.EXACT, Level.RECOGNISABLE, Level.TRACES, Level.UNKNOWN, None):
        assert not shows_reconstruction(Role.ATTACK, level)
    assert not shows_reconstruction(Role.SELF_TEST, Level.NOTHING)


def test_names_are_replaced_as_words_and_the_same_everywhere(audit: Audit) -> None:
    finding = audit.findings.findings[0]
    images = (replace(finding.images[0], name="cat", reason="cat (cat.) indicates no concatenation"),)
    changed = replace(audit, findings=replace(audit.findings, findings=(replace(finding, images=images),)))
    image = redact(changed).findings.findings[0].images[0]
    assert image.reason == f"{image.name} ({image.name}.) indicates no concatenation"


def test_verdicts_scores_and_counts_stay(audit: Audit) -> None:
    clean = redact(audit)
    assert redact(clean) is clean
    assert clean.redacted
    for old, new in zip(audit.findings.findings, clean.findings.findings, strict=True):
        assert (old.level, old.target, old.leaked, old.interval) == (new.level, new.target, new.leaked, new.interval)
        assert [(i.level, i.scores, i.rank) for i in old.images] == [(i.level, i.scores, i.rank) for i in new.images]
    assert [r.status for r in audit.records.values()] == [r.status for r in clean.records.values()]
    assert len(clean.controls()) == len(audit.controls()) == 6
    assert file_name(clean, "html") == "report-redacted.html"
    assert file_name(audit, "html") == "report.html"
    assert {clean.folders[key] for key in clean.cells} == set(audit.cells)
