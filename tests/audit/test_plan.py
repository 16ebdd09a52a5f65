"""What ``auto`` stands for."""

import pytest

from leakscope.attacks.configure import configured
from leakscope.attacks.decoders import pink
from leakscope.audit.plan import ladder


@pytest.mark.parametrize(
    ("client", "short", "decode"),
    [
        ({}, ["inverting-gradients"], pink),
        ({"type": "fedsgd", "mode": "eval"}, ["inverting-gradients"], pink),
        ({"type": "fedsgd", "mode": "train"}, ["train-mode"], pink),
        ({"type": "split", "cut": "x"}, ["inverting-gradients"], pink),
        ({"type": "fedavg", "mode": "train"}, ["delta-as-gradient", "data-leakage-fl"], None),
    ],
)
def test_short_optimisation_fits_the_client(client, short, decode):
    rungs = [rung for rung in ladder(client) if rung.height == 2]
    assert [rung.attack for rung in rungs] == short
    assert {configured(rung.attack, rung.options).decode for rung in rungs} == {decode}
    assert [rung.height for rung in ladder(client)] == sorted(rung.height for rung in ladder(client))


@pytest.mark.parametrize(("top", "highest"), [("closed-forms", 0), ("short", 2), ("tuned", 3)])
def test_a_budget_ends_the_ladder(top, highest):
    assert max(rung.height for rung in ladder({}, top)) == highest
