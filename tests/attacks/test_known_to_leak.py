"""Every attack that names a target known to leak to it gets through on it, by a wide margin."""

import pytest
import torch

import leakscope as ls
from leakscope.attacks import Leaky, known_to_leak, register_attack
from leakscope.audit.images import load_images


def reached(name, leaky):
    """The PSNR of every image of the self-test, in dB."""
    options = dict(leaky.model)
    model = ls.load_model(options.pop("name"), **options)
    batch = load_images(leaky.images["from"], model.input).batch
    protocol = ls.FedSGD(**{key: value for key, value in leaky.client.items() if key != "type"})
    threat = ls.ThreatModel(name="self-test", knows=frozenset(ls.Knows(one) for one in leaky.knows))
    generator = torch.Generator().manual_seed(leaky.seed)
    seen = ls.observe(model, batch, protocol=protocol, threat=threat, generator=generator)
    made = ls.attack(name, **leaky.settings({}))
    return ls.score(made(seen, generator=generator), batch, ["psnr"])["psnr"]


def self_tested():
    names = [name for name in ls.ATTACKS if known_to_leak(name) is not None]
    # Other clients than FedSGD and public data are the campaign's business; here it is the attack's own code.
    return [n for n in names if known_to_leak(n).client["type"] == "fedsgd" and not known_to_leak(n).public]


@pytest.mark.parametrize("name", self_tested())
def test_gets_through(name):
    leaky = known_to_leak(name)
    assert float(reached(name, leaky).min()) > leaky.psnr + 5


def test_the_first_attacks_have_one():
    expected = {"dlg", "idlg", "inverting-gradients", "tag", "linear-layer", "exact-git", "patch-embedding"}
    assert expected | {"patch-embedding-blind", "april-closed-form"} <= set(self_tested())


def test_a_bar_that_a_blank_reaches_is_refused():
    with pytest.raises(ls.BadInput, match="15 dB"):
        Leaky(model={"name": "leakscope:mlp"}, psnr=12)


def test_an_unknown_attack_is_refused():
    with pytest.raises(ls.UnknownName, match="dlg"):
        known_to_leak("dlgg")


def test_what_costs_time_is_replaced_and_the_rest_is_the_users():
    leaky = known_to_leak("inverting-gradients")
    assert leaky.settings({"steps": 24000, "tv": 0.3}) == {**leaky.options, "tv": 0.3}


def test_the_decorator_takes_none():
    assert register_attack("never-entered", cites="zhu2019", leaky=None) is not None
    with pytest.raises(ls.UnknownName):
        known_to_leak("never-entered")
