"""Every registered attack keeps the contract, without being listed here."""

from dataclasses import replace

import pytest
import torch

import leakscope as ls
from leakscope.attacks.configure import options_of
from leakscope.testing.contract import ContractBroken, check_attack

QUICK = {"steps": 2, "solver": "cg", "iterations": 2, "hidden": 8, "bins": 512, "width": 64}
"""Options that only cost time; an attack takes those it has (closed forms take no steps)."""


def build(name):
    known = options_of(name)
    made = ls.attack(name, **{key: value for key, value in QUICK.items() if key in known})
    if isinstance(made, ls.Optimisation) and "max_iter" in getattr(made.optimiser, "options", {}):
        quick = replace(made.optimiser, options={**made.optimiser.options, "max_iter": 3})  # of L-BFGS, in each step
        made = replace(made, optimiser=quick)
    return made


@pytest.mark.parametrize("name", list(ls.ATTACKS))
def test_attack_keeps_the_contract(name):
    assert check_attack(build(name)) > 0


def fake(seen, images):
    outcome = ls.Outcome(status=ls.Status.FINISHED, message="")
    return ls.Reconstruction(
        images=images, labels=torch.zeros(len(images), dtype=torch.long), energy=0, outcome=outcome
    )


def test_the_contract_catches_cheats():
    def random(seen, *, generator, callback=None):
        return fake(seen, torch.rand(1, *seen.input.shape))

    def hook(seen, *, generator, callback=None):
        seen.model.module.register_forward_hook(lambda *_: None)
        return fake(seen, torch.zeros(1, *seen.input.shape))

    def train(seen, *, generator, callback=None):
        seen.model.module.train()
        return fake(seen, torch.zeros(1, *seen.input.shape))

    def bright(seen, *, generator, callback=None):
        return fake(seen, 2 * torch.ones(1, *seen.input.shape))

    for cheat, message in (
        (random, "same bits"),
        (hook, "as it was"),
        (train, "as it was"),
        (bright, r"left \[0, 1\]"),
    ):
        with pytest.raises(ContractBroken, match=message):
            check_attack(cheat)
