"""The demonstration, run for real, and its report in a real browser."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from browser import chromium, visit
from leakscope.audit.findings_file import read_findings
from leakscope.cli.app import app


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    # One process: others are at work beside this test.
    result = CliRunner().invoke(app, ["demo", "--out", str(out), "--jobs", "1"])
    assert result.exit_code == 0, result.output
    return out, result.output


@pytest.mark.timeout(900)
def test_the_demo_finds_what_is_known_to_be_there(demo):
    out, said = demo
    levels = {finding.target: str(finding.level) for finding in read_findings(out).findings}
    assert levels == {
        "vision-transformer/photographs/one-image": "exact",
        "vision-transformer/photographs/one-image/no-position-gradient": "exact",
        "small-convnet/photographs/one-image": "exact",
        "small-convnet/photographs/one-image/little-noise": "recognisable",
        "small-convnet/photographs/one-image/much-noise": "nothing found",
        "resnet/four-at-once/train-mode": "nothing found",
    }
    assert "report.html" in "".join(said.split())


def test_nothing_found_carries_its_evidence(demo):
    for finding in read_findings(demo[0]).findings:
        if str(finding.level) == "nothing found":
            assert any(attempt.role == "control" for attempt in finding.evidence.attempts)
            assert all(test.passed for test in finding.evidence.self_tests)
            assert finding.evidence.self_tests
            assert finding.evidence.identifiability


def test_private_pictures_stay_in_the_folder(demo):
    out, said = demo
    assert "bundled" not in said
    records = [json.loads(path.read_text()) for path in out.glob("cells/*/record.json")]
    assert all(record["status"] != "failed" for record in records)


def test_the_report_in_a_browser(demo, tmp_path):
    report = Path(demo[0]) / "report.html"
    assert report.stat().st_size < 15_000_000
    with chromium() as browser, visit(browser, report.as_uri()) as seen:
        chips = seen.page.locator(".card .chip").all_inner_texts()
        assert chips == ["exact", "exact", "exact", "recognisable", "nothing found", "nothing found"]
        slider = seen.page.locator(".compare input").first
        slider.focus()
        seen.page.keyboard.press("ArrowRight")
        assert slider.input_value() == "51"
        assert seen.problems == []
        seen.page.pdf(path=tmp_path / "print.pdf", format="A4")
        assert (tmp_path / "print.pdf").stat().st_size > 50_000
