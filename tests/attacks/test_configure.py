"""Options from plain data: typed by the recipe's signature and the attack's fields, or refused."""

from __future__ import annotations

import inspect
import tomllib

import pytest

import leakscope as ls
from leakscope.attacks.configure import configured, has_loop, options_from_text, options_of
from leakscope.attacks.decoders import pink
from leakscope.attacks.registry import ATTACKS
from leakscope.attacks.starts import FromAttack
from leakscope.errors import BadInput, UnknownName


def _made(options: dict[str, object]) -> ls.Optimisation:
    made = configured("inverting-gradients", options)
    assert isinstance(made, ls.Optimisation)
    return made


def test_a_table_of_a_campaign_file_gives_recipe_loop_and_stopping_options() -> None:
    table = tomllib.loads('steps = 7\ntv = 1\npopulation = 3\ngradient = "exact"\nseconds = 5\npatience = 4\n')
    made = _made(table)
    assert (made.steps, made.population, made.gradient) == (7, 3, "exact")
    assert (made.terms[1].weight, type(made.terms[1].weight)) == (1.0, float)
    assert made.stop == ls.Stop(seconds=5.0, patience=4)
    assert _made({}) == ls.attack("inverting-gradients")


def test_a_stopping_rule_is_added_to_the_recipes_own() -> None:
    made = configured("dlg", {"target": 0})
    assert isinstance(made, ls.Optimisation)
    assert made.stop == ls.Stop(patience=20, target=0.0)
    lifted = configured("dlg", {"patience": None})
    assert isinstance(lifted, ls.Optimisation)
    assert lifted.stop == ls.Stop()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stepss": 3}, ["Unknown option of inverting-gradients 'stepss'", "Did you mean 'steps'?"]),
        ({"poplation": 3}, ["Did you mean 'population'?"]),
        ({"terms": 3}, ["Unknown option of inverting-gradients 'terms'"]),
        ({"steps": "12"}, ["'steps' of inverting-gradients is '12' (str)", "it must be a whole number"]),
        ({"steps": 12.0}, ["12.0 (float)", "a whole number"]),
        ({"steps": True}, ["True (bool)", "a whole number"]),
        ({"tv": [1.0]}, ["[1.0] (list)", "it must be a number"]),
        ({"tv": float("nan")}, ["nan", "a finite number"]),
        ({"gradient": "quick"}, ["'quick'", "accepted are auto, exact, fast"]),
        ({"seconds": -1}, ["'seconds' of inverting-gradients is -1", "more than 0"]),
        ({"patience": 0}, ["is 0", "more than 0"]),
        ({"patience": "long"}, ["'long' (str)", "a whole number or none"]),
        ({"steps": 0}, ["steps is 0", "at least 1"]),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_given_and_what_is_accepted(
    options: dict[str, object], expected: list[str]
) -> None:
    with pytest.raises(BadInput) as refusal:
        configured("inverting-gradients", options)
    for part in expected:
        assert part in str(refusal.value)


def test_what_is_searched_can_be_named() -> None:
    assert _made({"search": "frequency"}).decode is pink
    assert _made({"search": "pixels"}) == _made({})
    with pytest.raises(BadInput, match="accepted are pixels, frequency"):
        _made({"search": "wavelets"})
    with pytest.raises(BadInput, match="posterior has a space of its own"):
        configured("posterior", {"search": "frequency"})
    with pytest.raises(UnknownName, match="search"):
        configured("patch-embedding", {"search": "frequency"})


def test_texts_become_the_same_values() -> None:
    assert options_from_text("inverting-gradients", ["steps=7", " tv = 1", "seconds=none", "population=2"]) == {
        "steps": 7,
        "tv": 1.0,
        "seconds": None,
        "population": 2,
    }


def test_what_only_python_can_give_is_said_so() -> None:
    with pytest.raises(BadInput, match="'head_residuals' of exact-git takes a value that only Python can give"):
        configured("exact-git", {"head_residuals": [[1.0]]})


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_every_attack_can_be_asked_for_its_options(name: str) -> None:
    assert set(inspect.signature(ATTACKS[name].value).parameters) <= set(options_of(name))
    with pytest.raises(UnknownName, match=f"option of {name}"):
        configured(name, {"no-such-option": 1})


def test_closed_forms_have_no_loop() -> None:
    assert has_loop("inverting-gradients")
    assert not has_loop("linear-layer")


def test_an_optimisation_starts_from_what_another_attack_brings_back() -> None:
    made = configured("inverting-gradients", {"steps": 3, "seconds": 5.0, "start_from": "linear-layer"})
    assert isinstance(made, ls.Optimisation)
    assert isinstance(made.init, FromAttack)
    assert (made.steps, made.stop.seconds) == (3, 5.0)
    with pytest.raises(UnknownName, match="linear-layer"):
        configured("inverting-gradients", {"start_from": "linear"})
    with pytest.raises(UnknownName):
        configured("linear-layer", {"start_from": "linear-layer"})
