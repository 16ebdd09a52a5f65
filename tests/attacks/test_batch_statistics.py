"""Statistics terms: the client's own batch statistics from what it shared, proxies from public batches, refusals."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import leakscope as ls
from leakscope.attacks.differentiate import Problem, agreement, exact, fast
from leakscope.attacks.member import Member
from leakscope.attacks.terms import BatchStatistics, Candidate, Evaluation, RunningStatistics, Weighted, targets
from leakscope.attacks.terms.statistics import chosen_source
from leakscope.models.watch import catching
from leakscope.testing.bundled import bundled_batch

NAMES = ["cat", "coffee", "flower", "astronaut"]
SHARED = ls.FedSGD(mode="train", share_buffers=True)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def resnet(name="resnet20", size=16, momentum=0.1, earlier=2, dtype=torch.float64):
    """A ResNet whose running statistics come from a few batches of noise."""
    model = ls.load_model(f"leakscope:{name}", num_classes=10, image_size=size, seed=0).to(dtype=dtype)
    layers = [m for _, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    for index, layer in enumerate(layers):
        layer.momentum = momentum if index % 2 else (momentum and momentum / 2)  # each has its own
    with torch.no_grad(), model.mode(True):
        for seed in range(earlier):
            model(torch.rand(4, 3, size, size, generator=seeded(seed), dtype=dtype))
    return model


def batch_of(count, size=16):
    one = bundled_batch(NAMES, size=size)
    images = torch.cat([one.images.roll(shift, 2) for shift in range(-(-count // 4))])[:count]
    return ls.Batch(images=images, labels=torch.arange(count) % 10)


def seen_of(model, batch, protocol=SHARED, threat=ls.threats.WITH_STATISTICS, **more):
    return ls.observe(model, batch, protocol=protocol, threat=threat, generator=seeded(), **more)


def truth(model, batch):
    """The true batch statistics of every BatchNorm layer, by hooks on a train-mode pass."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad(), catching(model.module, names) as caught, model.mode(True):
        model.functional({}, buffers, batch.images.to(model.dtype))
    return {n: (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)) for n, x in caught.items()}


def relative(found, true):
    """The largest ‖found − true‖ / ‖true‖ over layers, of means and of variances."""
    assert set(found) == set(true)
    return max(float((a - b).norm() / b.norm()) for n in true for a, b in zip(found[n], true[n], strict=True))


@pytest.mark.parametrize("momentum", [0.1, 0.03, None])
@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_exact_statistics_are_the_batchs(count, momentum):
    model, batch = resnet(momentum=momentum), batch_of(count)
    assert relative(targets.exact(seen_of(model, batch)), truth(model, batch)) < 1e-5  # measured: below 1e-12


@pytest.mark.parametrize("momentum", [0.1, None])
def test_exact_statistics_on_resnet18_in_single_precision(momentum):
    model, batch = resnet("resnet18", momentum=momentum, earlier=1, dtype=torch.float32), batch_of(2)
    assert relative(targets.exact(seen_of(model, batch)), truth(model, batch)) < 1e-3


def at(seen, term, images):
    """The value of a term at these images."""
    problem = Problem.of(seen, (Weighted(term=term),))
    model = seen.model
    candidate = Candidate(images=images, inputs=model.normalise(images), labels=seen.labels)
    with catching(model.module, problem.watched) as caught:
        signal = seen.protocol.replay(model, images, seen.labels)
    return float(problem.total(candidate, Evaluation(signal=signal, activations=caught), 0.0).detach())


def test_only_exact_statistics_vanish_at_the_truth():
    model, batch = resnet(), batch_of(4)
    seen, images = seen_of(model, batch), batch.images.double()
    assert at(seen, BatchStatistics(statistics="exact"), images) < 1e-8
    assert at(seen, BatchStatistics(statistics="running"), images) > 1
    assert at(seen, BatchStatistics(statistics="running"), images) == at(seen, RunningStatistics(), images)
    assert at(seen, BatchStatistics(statistics="exact"), images.flip(1)) > 0.1


def test_relative_statistics_count_every_layer_alike():
    model, batch = resnet(), batch_of(4)
    seen, other = seen_of(model, batch), batch.images.double().flip(1)
    term = BatchStatistics(statistics="exact", relative=True)
    assert at(seen, term, batch.images.double()) < 1e-8
    here, there = truth(model, batch), truth(model, ls.Batch(images=other, labels=batch.labels))
    wanted = 0.0
    for name, (mean, variance) in here.items():
        unit = variance.clamp_min(1e-3 * variance.mean())
        wanted += float(((there[name][0] - mean) / unit.sqrt()).square().mean().sqrt())
        wanted += float(((there[name][1] - variance) / unit).square().mean().sqrt())
    assert at(seen, term, other) == pytest.approx(wanted, rel=1e-6)
    # A layer ten times as large says a hundred times as much of its variance, and in its own units the same.
    before = [at(seen, BatchStatistics(statistics="exact", relative=r), other) for r in (False, True)]
    with torch.no_grad():
        model.module.conv1.weight.mul_(10)  # its own norm takes the factor out again
    seen = seen_of(model, batch)
    after = [at(seen, BatchStatistics(statistics="exact", relative=r), other) for r in (False, True)]
    assert after[0] > 2 * before[0]
    assert after[1] == pytest.approx(before[1], rel=1e-3)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("source", ["exact", "proxy"])
def test_the_fast_gradient_agrees(source, relative):
    model = resnet()
    seen = seen_of(model, batch_of(2), threat=ls.threats.WITH_PUBLIC_DATA, public=batch_of(4))
    term = BatchStatistics(statistics=source, candidates=2, keep=1, relative=relative)
    attack = ls.Optimisation(terms=(Weighted(term=term),), steps=1)
    problem, member = Problem.of(seen, attack.terms), Member(0, attack, seen, seeded())
    _, slow = exact(problem, member.leaves, member.candidate, 0.0)
    _, quick = fast(problem, member.leaves, member.candidate, 0.0)
    assert float(slow[0].norm()) > 0
    assert agreement(quick, slow) < 1e-6


def test_what_cannot_be_exact_says_why():
    model, batch, term = resnet(), batch_of(2), BatchStatistics(statistics="exact")
    with pytest.raises(ls.MissingKnowledge, match="normalisation statistics"):
        term.bind(seen_of(model, batch, threat=ls.threats.WITH_LABELS))
    with pytest.raises(ls.NotApplicable, match="share_buffers"):
        term.bind(seen_of(model, batch, ls.FedSGD(mode="train")))
    local = seen_of(model, batch, ls.FedAvg(steps=3, mode="train", share_buffers=True))
    with pytest.raises(ls.NotApplicable, match="3 times"):
        term.bind(local)
    assert set(targets.exact(local, approximate=True)) == set(truth(model, batch))
    one = seen_of(model, batch, ls.FedAvg(steps=1, mode="train", share_buffers=True))
    assert relative(targets.exact(one), truth(model, batch)) < 1e-8
    with pytest.raises(ls.NotApplicable, match="1 times, on 1 of 2 images"):
        term.bind(seen_of(model, batch, ls.FedAvg(steps=1, batch_size=1, mode="train", share_buffers=True)))
    # The counter is believed before the protocol: a client that in truth made two passes is found out.
    lied = replace(one, signal={n: v + 1 if n.endswith("tracked") else v for n, v in one.signal.items()})
    with pytest.raises(ls.NotApplicable, match="2 times"):
        term.bind(lied)
    with pytest.raises(ls.NotApplicable, match="no BatchNorm"):
        term.bind(seen_of(ls.load_model("leakscope:mlp?hidden=4", image_size=16), batch))
    synced = resnet()
    synced.module.bn1 = nn.SyncBatchNorm(16).double()
    with pytest.raises(ls.NotApplicable, match="SyncBatchNorm"):
        term.bind(replace(seen_of(resnet(), batch), model=synced))


def test_proxy_statistics_are_those_of_the_batch_that_aligns_best():
    """Among the public images is the private one: it must be the one kept."""
    model, batch = resnet(), batch_of(1)
    public = batch_of(6)
    seen = seen_of(model, batch, ls.FedSGD(mode="train"), ls.threats.WITH_PUBLIC_DATA, public=public)
    found = targets.proxy(seen, candidates=24, keep=1, seed=0)
    assert relative(found, truth(model, batch)) < 1e-9
    other = targets.proxy(seen, candidates=24, keep=24, seed=0)
    assert relative(other, truth(model, batch)) > 1e-2


class Norms(nn.Module):
    """One layer of every kind."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norms = nn.Sequential(
            nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm(6), nn.RMSNorm(6)
        )
        self.head = nn.Linear(4 * 36, 10)

    def forward(self, x):
        return self.head(self.norms(self.conv(x)).flatten(1))


def test_proxy_statistics_of_every_kind_of_norm():
    with ls.random.global_draws(seeded()):
        module = Norms()
    spec = ls.InputSpec(shape=(3, 8, 8), num_classes=10)
    model = ls.VisionModel(module, input=spec, mean=(0.5,) * 3, std=(0.2,) * 3, name="norms")
    seen = seen_of(
        model,
        batch_of(2, 8),
        ls.FedSGD(mode="train"),
        ls.threats.WITH_PUBLIC_DATA,
        public=batch_of(4, 8),
    )
    found = targets.proxy(seen, candidates=4, keep=2, seed=0)
    assert {name: mean.numel() for name, (mean, _) in found.items()} == {
        "norms.0": 4,
        "norms.1": 2,
        "norms.2": 4,
        "norms.3": 24,
        "norms.4": 24,
    }
    assert not any(m._forward_pre_hooks for m in module.modules())
    with pytest.raises(ls.MissingKnowledge, match="public data"):
        BatchStatistics(statistics="proxy").bind(seen_of(model, batch_of(2, 8)))
    with pytest.raises(ls.BadInput, match="at least 2 public images"):
        BatchStatistics(statistics="proxy").bind(replace(seen, public=batch_of(1, 8)))


def test_auto_takes_the_best_there_is(caplog):
    caplog.set_level("INFO")
    model, batch = resnet(), batch_of(2)
    assert chosen_source(seen_of(model, batch), "auto") == "exact"
    public = {"threat": ls.threats.WITH_PUBLIC_DATA, "public": batch_of(4)}
    assert chosen_source(seen_of(model, batch, ls.FedSGD(mode="train"), **public), "auto") == "proxy"
    assert chosen_source(seen_of(model, batch, ls.FedSGD()), "auto") == "running"
    nothing = seen_of(resnet(earlier=0), batch, ls.FedSGD())
    assert chosen_source(nothing, "auto") == "none"
    assert BatchStatistics().watches(nothing) == ()
    assert at(nothing, BatchStatistics(), batch.images.double()) == 0
    assert "none are matched" in caplog.text


def test_settings_are_checked():
    with pytest.raises(ls.BadInput, match="'exakt'"):
        BatchStatistics(statistics="exakt")
    with pytest.raises(ls.BadInput, match="5 of 4"):
        BatchStatistics(candidates=4, keep=5)
