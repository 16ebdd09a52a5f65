"""What people type, turned into values by the recipe's own signature."""

from __future__ import annotations

from typing import Literal

import pytest

import leakscope as ls
from leakscope.attacks.registry import ATTACKS
from leakscope.cli.options import build_attack, parse_labels, threat_named
from leakscope.errors import BadInput
from leakscope.registry import Entry
from leakscope.types import Attack


def _build(pairs: list[str], **options: object) -> ls.Optimisation:
    made = build_attack("inverting-gradients", pairs=pairs, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(made, ls.Optimisation)
    return made


def test_recipe_options_have_the_types_of_its_signature() -> None:
    made = _build(["steps=12", " tv = 1e-3", "lr=1"])
    assert (made.steps, made.optimiser.lr, made.terms[1].weight) == (12, 1.0, 1e-3)
    assert isinstance(made.optimiser.lr, float)
    assert _build([]) == ls.attack("inverting-gradients")


def test_stopping_is_added_to_what_the_recipe_asks_for() -> None:
    made = build_attack("dlg", seconds=5.0)
    assert isinstance(made, ls.Optimisation)
    assert made.stop == ls.Stop(seconds=5.0, patience=20)
    made = build_attack("dlg", patience=3, target=0.0, restarts=4, jobs=2, gradient="exact")
    assert isinstance(made, ls.Optimisation)
    assert made.stop == ls.Stop(patience=3, target=0.0)
    assert (made.population, made.workers, made.gradient) == (4, 2, "exact")


class _Closed:
    """An attack without a loop."""

    def __init__(self, **options: object) -> None:
        self.options = options


def _recipe(*, exact: bool = True, rule: Literal["a", "b"] = "a", name: str = "x") -> Attack:
    """A made-up attack."""
    return _Closed(exact=exact, rule=rule, name=name)  # pyright: ignore[reportReturnType]


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an attack that exists for one test."""
    assert "made-up" not in ATTACKS
    monkeypatch.setitem(ATTACKS._entries, "made-up", Entry(name="made-up", value=_recipe, summary="Made up."))
    return "made-up"


def test_other_types_are_read_too(closed: str) -> None:
    made = build_attack(closed, pairs=["exact=False", "rule=b", "name=a=b"])
    assert isinstance(made, _Closed)
    assert made.options == {"exact": False, "rule": "b", "name": "a=b"}
    with pytest.raises(BadInput, match="true or false"):
        build_attack(closed, pairs=["exact=maybe"])
    with pytest.raises(BadInput, match="accepted are a, b"):
        build_attack(closed, pairs=["rule=c"])


def test_a_loop_cannot_be_configured_where_there_is_none(closed: str) -> None:
    for options in ({"restarts": 2}, {"seconds": 1.0}, {"gradient": "fast"}):
        with pytest.raises(BadInput, match="'made-up' has no optimisation loop"):
            build_attack(closed, **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="Unknown option of made-up 'steps'"):
        build_attack(closed, steps=3)


def test_labels_and_threats() -> None:
    assert parse_labels(None) is None
    assert parse_labels("3, 5") == [3, 5]
    assert threat_named("labels") == ls.threats.WITH_LABELS
    assert threat_named("statistics") == ls.threats.WITH_STATISTICS
