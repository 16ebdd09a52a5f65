"""What is searched: by the recipe's own parameters, or as asked."""

from __future__ import annotations

import pytest

from leakscope.audit.tuner_space import Choice, Range, default_space, space_from_text
from leakscope.errors import BadInput


def test_every_weight_and_rate_of_a_recipe_has_a_range() -> None:
    assert default_space("inverting-gradients", {}) == {
        "tv": Range(low=1e-6, high=1e-1, log=True),
        "lr": Range(low=1e-4, high=1e2, log=True),
    }
    assert set(default_space("inverting-gradients", {"tv": 1.0})) == {"lr"}
    assert set(default_space("tag", {})) == {"lr", "alpha", "decay"}
    assert default_space("linear-layer", {}) == {}


def test_ranges_can_be_spelled_out() -> None:
    texts = ["tv=1e-5:1:log", "lr = 0.1 : 1", "steps=10:40", "gradient=fast|exact", "patience=5:50"]
    assert space_from_text("inverting-gradients", texts, {}) == {
        "tv": Range(low=1e-5, high=1.0, log=True),
        "lr": Range(low=0.1, high=1.0),
        "steps": Range(low=10, high=40, whole=True),
        "gradient": Choice(values=("fast", "exact")),
        "patience": Range(low=5, high=50, whole=True),
    }
    assert space_from_text("inverting-gradients", ["tv"], {}) == {"tv": Range(low=1e-6, high=1e-1, log=True)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tvv=0:1", "Did you mean 'tv'?"),
        ("tv=1", "give LOW:HIGH or LOW:HIGH:log, or choices"),
        ("tv=0:1:cubic", "give LOW:HIGH"),
        ("tv=a:b", "it must be a number"),
        ("tv=1:0", "is empty"),
        ("tv=0:1:log", "above 0"),
        ("steps=1.5:3", "whole number"),
        ("steps", "has no range of its own"),
        ("gradient=1:2", "give choices with"),
        ("gradient=fast|slow", "accepted are auto, exact, fast"),
        ("lr=0:1", "both fixed .to 0.5. and searched"),
    ],
)
def test_what_cannot_be_searched_is_refused(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        space_from_text("inverting-gradients", [text], {"lr": 0.5})


def test_twice_is_once_too_often() -> None:
    with pytest.raises(BadInput, match="given twice"):
        space_from_text("inverting-gradients", ["tv", "tv=0:1"], {})
