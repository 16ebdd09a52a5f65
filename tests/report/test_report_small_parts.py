"""Exit codes, citations, campaign text and the printing of PDFs where there is no browser."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign_folder import build
from leakscope.attacks import ATTACKS
from leakscope.audit.findings import Finding, Findings, Level
from leakscope.client.registry import DEFENCES
from leakscope.errors import BadInput, UnknownName
from leakscope.metrics import METRICS
from leakscope.report.citations import cited, papers_of
from leakscope.report.exit_code import exit_code, objections, threshold
from leakscope.report.load import load
from leakscope.report.pdf import BROWSER, find_browser, print_pdf
from leakscope.report.toml_text import toml_text


def _findings(*levels: Level, done: int = 3) -> Findings:
    found = tuple(
        Finding(
            target=f"t{place}",
            model="m",
            images_name="i",
            client="c",
            defence="none",
            attacker="server",
            level=level,
            summary="",
            images=(),
            leaked=0.0,
            interval=(0.0, 1.0),
        )
        for place, level in enumerate(levels)
    )
    return Findings(campaign="c", policy={}, done=done, total=3, findings=found)


@pytest.mark.parametrize("fail_on", ["exact", "recognisable", "traces"])
@pytest.mark.parametrize("level", list(Level))
def test_a_build_fails_at_its_threshold_and_on_open_questions(fail_on: str, level: Level) -> None:
    worst_first = ["exact", "recognisable", "traces", "nothing found"]
    fails = level is Level.UNKNOWN or worst_first.index(level) <= worst_first.index(fail_on)
    assert exit_code(_findings(Level.NOTHING, level), threshold(fail_on)) == (3 if fails else 0)
    assert exit_code(_findings(level), None) == 0


def test_an_unfinished_or_empty_audit_does_not_pass() -> None:
    assert exit_code(_findings(Level.NOTHING), Level.EXACT) == 0
    assert objections(_findings(Level.NOTHING, done=1), Level.EXACT) == ["2 of 3 cells have not run"]
    assert objections(_findings(), Level.EXACT) == ["the audit holds no findings"]
    assert objections(_findings(Level.EXACT), Level.TRACES) == ["t0, server: exact"]


@pytest.mark.parametrize("name", ["recognizable", "nothing found", "unknown", ""])
def test_other_thresholds_are_refused(name: str) -> None:
    with pytest.raises(UnknownName, match=r"exact, recognisable, traces"):
        threshold(name)


@pytest.mark.parametrize(("room", "registry"), [("attacks", ATTACKS), ("client", DEFENCES), ("metrics", METRICS)])
def test_citations_are_those_of_the_registries(room: str, registry: Any) -> None:
    entries = {entry.name: entry.cites for entry in registry.values() if entry.cites}
    assert entries
    assert {name: cited(room, name) for name in entries} == entries


def test_a_campaign_cites_its_attacks_defences_models_and_metrics(tmp_path: Path) -> None:
    audit = load(build(tmp_path))
    keys = [paper.key for paper in papers_of(audit.cells.values(), ["ssim", "no such metric"])]
    assert keys == sorted(set(keys))
    assert {"geiping2020", "lu2022", "wang2004"} <= set(keys)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    _TEXT,
    st.lists(st.integers(0, 9), max_size=3),
)
_VALUE = st.recursive(
    st.one_of(_PLAIN, st.lists(_PLAIN, max_size=3)),
    lambda inner: st.one_of(
        st.dictionaries(_TEXT, inner, max_size=3), st.lists(st.dictionaries(_TEXT, inner, max_size=2), max_size=2)
    ),
    max_leaves=12,
)


@given(st.dictionaries(_TEXT, _VALUE, max_size=4))
def test_toml_reads_back_as_it_was(data: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(data)) == data


def test_toml_leaves_out_what_is_none_and_keeps_tables_in_lists() -> None:
    data = {"a": None, "b": [{"type": "noise", "c": [{"d": 1}]}, {}], "e": {"f": {"g": float("inf")}}}
    assert tomllib.loads(toml_text(data)) == {
        "b": [{"type": "noise", "c": [{"d": 1}]}, {}],
        "e": {"f": {"g": float("inf")}},
    }


def test_without_a_browser_there_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROWSER, str(tmp_path / "no-browser"))
    assert find_browser() is None
    with pytest.raises(BadInput, match=rf"apt install chromium\), name it in {BROWSER}"):
        print_pdf(tmp_path / "report.html", tmp_path / "report.pdf")


def test_a_browser_that_prints_nothing_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "browser"
    broken.write_text("#!/bin/sh\necho out of paper >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv(BROWSER, str(broken))
    (tmp_path / "report.pdf").write_text("of last week")
    with pytest.raises(BadInput, match="browser' did not print the report: out of paper"):
        print_pdf(tmp_path / "report.html", tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()
