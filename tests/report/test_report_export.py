"""CSV and JSON: complete, strict, and as the published schema says."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from campaign_folder import HOSTILE, build
from leakscope.report.export import csv_text, document, json_text
from leakscope.report.load import Audit, load
from leakscope.report.redact import redact

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return load(build(tmp_path_factory.mktemp("campaign"), hostile=True))


def _refuse(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


def test_the_document_keeps_to_its_schema(audit: Audit) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    check = jsonschema.Draft202012Validator(SCHEMA)
    for one in (audit, redact(audit), replace(audit, records={}, unreadable={next(iter(audit.cells)): "damaged"})):
        content = json.loads(json_text(one), parse_constant=_refuse)
        assert list(check.iter_errors(content)) == []
    content["level"] = "fine"
    assert list(check.iter_errors(content))


def test_the_document_holds_everything(audit: Audit) -> None:
    content = document(audit)
    assert content["level"] == "exact"
    assert len(content["findings"]) == 6
    assert {cell["key"] for cell in content["cells"]} == set(audit.cells)
    statuses = [cell["status"] for cell in content["cells"]]
    assert {"finished", "refused", "failed"} == set(statuses)
    assert "geiping2020" in [paper["key"] for paper in content["citations"]]


def test_a_row_for_every_image_and_finding(audit: Audit) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(audit), newline="")))
    assert len(rows) == 12
    assert [row["level"] for row in rows[:4]] == ["exact", "exact", "recognisable", "recognisable"]
    assert rows[0]["image"].endswith(HOSTILE)
    assert float(rows[0]["psnr"]) == 58.3
    assert float(rows[0]["control_psnr"]) == 9.1
    assert rows[-1]["psnr"] == ""
    assert {len(row) for row in rows} == {22}


def test_a_finding_without_images_has_its_row(audit: Audit) -> None:
    bare = replace(audit.findings.findings[0], images=(), summary="nobody was there")
    one = replace(audit, findings=replace(audit.findings, findings=(bare,)))
    (row,) = csv.DictReader(io.StringIO(csv_text(one), newline=""))
    assert (row["image"], row["level"], row["reason"], row["p_value"]) == ("", "exact", "nobody was there", "")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(audit: Audit, start: str) -> None:
    finding = audit.findings.findings[0]
    image = replace(finding.images[0], name=f"{start}cmd|' /C calc'!A0", scores={"psnr": -3.5})
    one = replace(audit, findings=replace(audit.findings, findings=(replace(finding, images=(image,)),)))
    (row,) = csv.DictReader(io.StringIO(csv_text(one), newline=""))
    assert row["image"] == f"'{image.name}"
    assert row["psnr"] == "-3.5"
