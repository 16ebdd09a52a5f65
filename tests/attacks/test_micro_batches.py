"""A few images at a time gives what the whole batch gives: the client's gradient, and the engine's in both forms."""

from dataclasses import replace

import pytest
import torch

import leakscope as ls
from leakscope.attacks.differentiate import Problem, agreement, exact, fast
from leakscope.attacks.labels import joint
from leakscope.attacks.member import Member
from leakscope.attacks.micro_batches import exact_in_parts, fast_in_parts, in_parts, ways
from leakscope.attacks.terms import Match, TotalVariation, Weighted
from leakscope.attacks.terms.statistics import RunningStatistics
from leakscope.functional.distances import cosine

NAMES = ["cat", "coffee", "astronaut"]


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def target(name="leakscope:april-b?dim=32&depth=2", *, size=8, dtype=torch.float64, **client):
    model = ls.load_model(name, num_classes=10, image_size=size, seed=0).to(dtype=dtype)
    batch = ls.bundled_batch(NAMES, size=size)
    return ls.observe(model, batch, protocol=ls.FedSGD(**client), threat=ls.threats.WITH_LABELS, generator=seeded(0))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_client_sends_the_same_gradient(reduction, size):
    whole, parts = target(reduction=reduction), target(reduction=reduction, micro_batch=size)
    assert in_parts(parts) == (size < 3)
    for name, gradient in whole.signal.items():
        torch.testing.assert_close(parts.signal[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("labels", ["known", "joint"])
@pytest.mark.parametrize("name", ["leakscope:april-b?dim=32&depth=2", "leakscope:resnet20"])
@pytest.mark.parametrize(("one", "other"), [(exact, exact_in_parts), (fast, fast_in_parts)])
def test_the_engine_gets_the_same_gradient(name, one, other, labels):
    whole = target(name)
    terms = (Weighted(term=Match(cosine)), Weighted(term=TotalVariation(), weight=0.1))
    attack = ls.Optimisation(terms=terms, steps=1)
    attack = replace(attack, labels=joint) if labels == "joint" else attack
    parts = replace(whole, protocol=replace(whole.protocol, micro_batch=2))
    found = {}
    for seen, differentiate in ((whole, one), (parts, other)):
        member = Member(0, attack, seen, seeded())
        found[differentiate] = differentiate(Problem.of(seen, terms), member.leaves, member.candidate, 0.0)
    (loss, plain), (same, chunked) = found[one], found[other]
    assert float(loss) == pytest.approx(float(same), rel=1e-9)
    assert len(plain) == (2 if labels == "joint" else 1)
    assert agreement(chunked, plain) < 1e-6


def test_an_attack_runs_in_parts():
    whole = target(dtype=torch.float32)
    parts = replace(whole, protocol=replace(whole.protocol, micro_batch=1))
    made = ways(parts)
    assert (made["exact"], made["fast"]) == (exact_in_parts, fast_in_parts)
    one, other = (ls.attack("inverting-gradients", steps=3)(seen, generator=seeded()) for seen in (whole, parts))
    assert other.evidence["gradient"] == "fast"
    assert other.trace[0] == pytest.approx(one.trace[0], rel=1e-3)


def test_images_that_see_one_another_cannot_be_taken_apart():
    with pytest.raises(ls.BadInput, match="see one another"):
        target("leakscope:resnet20", size=16, dtype=torch.float32, mode="train", micro_batch=2)
    seen = target("leakscope:resnet20", size=16, dtype=torch.float32, mode="eval", micro_batch=2)
    for layer in seen.model.module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.fill_(0.5)
    attack = ls.Optimisation(terms=(Weighted(term=RunningStatistics()),), steps=1)
    with pytest.raises(ls.NotApplicable, match="micro_batch"):
        attack(seen, generator=seeded())
    with pytest.raises(ls.BadInput, match="micro_batch is 0"):
        ls.FedSGD(micro_batch=0)
    with pytest.raises(ls.BadInput, match="do not go together"):
        ls.FedSGD(micro_batch=1, mode="train", stochastic=True)
