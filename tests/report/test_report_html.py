"""The report's page: complete, escaped, self-contained, bounded, and honest about what is missing."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from campaign_folder import HOSTILE, TARGETS, build, write_findings
from leakscope.audit.cell import CELLS
from leakscope.audit.findings import Findings, Level
from leakscope.audit.findings_file import read_findings
from leakscope.errors import BadInput
from leakscope.report import html
from leakscope.report.html import render, write_file
from leakscope.report.load import UNREADABLE, load


class _Page(HTMLParser):
    """Every element with its attributes, and the text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("campaign"))


@pytest.fixture(scope="module")
def page(folder: Path) -> _Page:
    return _Page(render(load(folder)))


def test_both_layers_are_there(page: _Page) -> None:
    text = " ".join(page.text.split())
    for words in (
        "Could the coordinating server see our patients' photographs?",
        "Images come back exactly.",
        "From vit (sgd, no defence), the attacker “server” got 2 of 2 images back exactly with inverting-gradients.",
        "Both photographs can be recognised.",
        "With defence “strong-noise” → nothing found Cost: −8.3% accuracy, noise of 0.2 × the update, 1 × the bytes.",
        "With client “train-mode” → nothing found",
        "“Nothing found” is not “safe”",
        "200 of 300 dimensions",
        "The model has no linear layer at its input.",
        "RuntimeError: boom",
        "@inproceedings{geiping2020,",
        'question = "Could the coordinating server',
    ):
        assert words in text
    for level in Level:
        assert str(level) in text
    anchors = {attributes.get("id") for _, attributes in page.elements}
    assert {"answer", "pictures", "changes", "limits", "ladder", "findings", "cells", "campaign"} <= anchors


def test_every_link_leads_somewhere(page: _Page) -> None:
    anchors = {attributes.get("id") for _, attributes in page.elements}
    for tag, attributes in page.elements:
        if tag == "a":
            assert (attributes["href"] or "")[1:] in anchors


def test_nothing_comes_from_outside(page: _Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            if attributes.get(name) is not None:
                assert re.match(r"#|data:image/(png|jpeg);base64,", attributes[name] or ""), (tag, name)
    assert sum(tag == "img" for tag, _ in page.elements) > 10


def test_the_policy_allows_the_pages_own_script_and_no_other(page: _Page) -> None:
    (script,) = page.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] or "" for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert re.search(r"script-src ([^;]+)", policy)[1] == f"'sha256-{digest}'"


def test_hostile_text_stays_text(tmp_path: Path, page: _Page) -> None:
    hostile = _Page(render(load(build(tmp_path, hostile=True))))
    assert len(hostile.scripts) == 1
    # The same elements as without: no text became markup. (Folded long texts may add none either.)
    assert sorted({tag for tag, _ in hostile.elements}) == sorted({tag for tag, _ in page.elements})
    assert len([1 for tag, _ in hostile.elements if tag == "img"]) == len([1 for t, _ in page.elements if t == "img"])
    for _, attributes in hostile.elements:
        assert not [name for name in attributes if name.startswith("on")]
    assert hostile.text.count("<script>alert('x')</script>") > 50
    # The character that turns text around is shown as one that cannot be shown.
    assert HOSTILE.replace("\u202e", "\ufffd") in hostile.text
    assert "\u202e" not in hostile.text


def test_long_names_and_odd_numbers_pass(tmp_path: Path) -> None:
    findings = read_findings(build(tmp_path))
    first = findings.findings[0]
    image = replace(first.images[0], name="x" * 5000, scores={"psnr": float("inf"), "odd": float("nan")}, p_value=None)
    odd = replace(first, images=(image,), leaked=float("nan"), interval=(float("nan"), float("nan")), target="y" * 5000)
    write_findings(tmp_path, replace(findings, findings=(odd,)))
    assert "∞" in render(load(tmp_path))


def test_a_broken_campaign_is_reported_as_such(tmp_path: Path) -> None:
    build(tmp_path)
    findings = read_findings(tmp_path)
    write_findings(tmp_path, replace(findings, done=findings.total - 1))
    key = findings.findings[0].images[0].cell
    (tmp_path / CELLS / key / "record.json").write_text("{")
    audit = load(tmp_path)
    assert audit.status(key) == UNREADABLE
    text = _Page(render(audit)).text
    assert "Not finished." in text
    assert "cannot be read as a record" in text


def test_an_audit_without_findings_has_no_answer(tmp_path: Path) -> None:
    build(tmp_path)
    write_findings(tmp_path, Findings(campaign="c", policy={}, done=0, total=4, findings=()))
    text = _Page(render(load(tmp_path))).text
    assert "There is no answer yet." in text
    assert "must not be read as safe" in text


def test_no_picture_is_taken_from_elsewhere(tmp_path: Path) -> None:
    folder = build(tmp_path / "campaign")
    Image.new("RGB", (9, 9), (1, 2, 3)).save(tmp_path / "secret.png")
    audit = load(folder)
    key = audit.findings.findings[0].images[0].cell
    place = folder / CELLS / key
    (place / "reconstruction-0.png").unlink()
    (place / "reconstruction-0.png").symlink_to(tmp_path / "secret.png")
    record = audit.records[key]
    outside = replace(record.pictures[1], original="../../../secret.png", reconstruction="original-1.png.txt")
    changed = replace(audit, records={**audit.records, key: replace(record, pictures=(record.pictures[0], outside))})
    text = render(changed)
    with Image.open(tmp_path / "secret.png") as secret:
        assert secret.size == (9, 9)
    assert 'width="9"' not in text
    assert text.count("no picture") >= 3


def test_large_campaigns_lose_pictures_not_verdicts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "_PICTURES", 10_000)
    text = render(load(folder))
    assert "left out of this file to keep it small" in text
    whole = len(text.encode())
    monkeypatch.setattr(html, "LARGEST", whole - 1)
    smaller = render(load(folder))
    assert len(smaller.encode()) < whole
    assert all(f"/photos/{client}" in smaller for _, client, _ in TARGETS)
    monkeypatch.setattr(html, "LARGEST", 1000)
    with pytest.raises(BadInput, match="Split the campaign"):
        render(load(folder))


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Cannot write"):
        write_file(tmp_path / "nowhere" / "report.html", "")
    assert not list(tmp_path.iterdir())
