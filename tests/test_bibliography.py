"""Whatever a registry cites can be looked up, and every entry is fit to print."""

from __future__ import annotations

import re

import pytest

from leakscope import ATTACKS, DEFENCES, METRICS, MODELS, UnknownName
from leakscope.audit.study import STUDIES
from leakscope.bibliography import BIBLIOGRAPHY, Paper, paper


@pytest.mark.parametrize("registry", [ATTACKS, DEFENCES, METRICS, MODELS, STUDIES], ids=lambda registry: registry.kind)
def test_every_citation_resolves(registry: object) -> None:
    entries = list(registry.values())  # pyright: ignore[reportAttributeAccessIssue]
    assert entries
    missing = {entry.name: entry.cites for entry in entries if entry.cites and entry.cites not in BIBLIOGRAPHY}
    assert missing == {}


def test_every_attack_cites_a_paper() -> None:
    assert [entry.name for entry in ATTACKS.values() if not entry.cites] == []


@pytest.mark.parametrize("entry", BIBLIOGRAPHY.values(), ids=lambda entry: entry.key)
def test_entries_are_whole(entry: Paper) -> None:
    year = re.search(r"\d{4}$", entry.key)
    assert year is not None
    assert abs(int(year[0]) - entry.year) <= 1
    assert all(re.fullmatch(r"[^,]+, [^,]+", author) for author in entry.authors.split(" and "))
    assert entry.bibtex.count("{") == entry.bibtex.count("}")
    assert entry.bibtex.startswith(f"@{entry.kind}{{{entry.key},")
    assert str(entry.year) in entry.short


def test_short_citations() -> None:
    assert paper("zhu2019").short == "Zhu et al., NeurIPS 2019"
    assert paper("zhu2021").short == "Zhu and Blaschko, ICLR 2021"
    assert paper("zhao2020").short == "Zhao et al., arXiv:2001.02610 (2020)"


def test_unknown_keys_get_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'geiping2020'"):
        paper("geiping")
