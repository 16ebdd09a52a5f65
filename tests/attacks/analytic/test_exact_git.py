"""The recursion against the truth, and every way it must refuse."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.analytic.chain import find_chain
from leakscope.types import InputSpec

FOUR = "leakscope:mlp?hidden=96,64,48&activation={}"


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def loaded(name, *, size=16, dtype=torch.float32):
    return ls.load_model(name, num_classes=10, image_size=size, seed=0).to(dtype=dtype)


def wrapped(module, *, size=8, channels=3, name="own"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = module()
    spec = InputSpec(shape=(channels, size, size), num_classes=10)
    return ls.VisionModel(module, input=spec, mean=[0.4] * channels, std=[0.2] * channels, name=name)


def private(model, count=1):
    return ls.bundled_batch(list(ls.bundled_names())[:count], size=model.input.shape[1], channels=model.input.shape[0])


def seen(model, batch, *, threat=ls.threats.HONEST_SERVER, **protocol):
    return ls.observe(model, batch, protocol=ls.FedSGD(**protocol), threat=threat, generator=seeded())


def residuals(model, batch):
    """What no server has: ∂L/∂logits of every sample."""
    with torch.no_grad():
        chances = model(batch.images.to(model.dtype)).softmax(dim=1)
    return (chances - F.one_hot(batch.labels, 10)) / len(batch)


def error(rec, batch):
    truth = batch.images.double()
    return float((rec.images.double() - truth).norm() / truth.norm())


def attack(observation, **options):
    return ls.attack("exact-git", **options)(observation, generator=seeded(1))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "leaky"])
def test_four_layers_give_one_image_exactly(activation):
    model = loaded(FOUR.format(activation))
    batch = private(model)
    rec = attack(seen(model, batch))
    assert error(rec, batch) <= 1e-6
    assert rec.labels.tolist() == batch.labels.tolist()
    assert rec.evidence["rank"] == [1, 1, 1, 1]
    assert rec.energy == rec.evidence["self-check"] < 1e-5
    assert max(rec.evidence["bias check"].values()) < 1e-5


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "leaky"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nine_images_of_ten_classes_with_given_residuals(activation, reduction):
    model = loaded(FOUR.format(activation), dtype=torch.float64)
    batch = private(model, 9)
    given = residuals(model, batch) * (9 if reduction == "sum" else 1)
    rec = attack(seen(model, batch, reduction=reduction), head_residuals=given)
    assert error(rec, batch) <= 1e-11
    assert rec.labels.tolist() == batch.labels.tolist()
    assert rec.evidence["head residuals"] == "given"


def test_residuals_must_fit():
    model = loaded(FOUR.format("tanh"))
    batch = private(model, 3)
    observation = seen(model, batch)
    given = residuals(model, batch)
    with pytest.raises(ls.NotApplicable, match="do not sum"):
        attack(observation, head_residuals=3 * given)
    with pytest.raises(ls.BadInput, match="one row per image"):
        attack(observation, head_residuals=given[:2])
    ten = private(model, 10)
    with pytest.raises(ls.NotApplicable, match="at most 9"):
        attack(seen(model, ten), head_residuals=residuals(model, ten))


def test_equal_images_cannot_be_told_apart():
    model = loaded(FOUR.format("tanh"), dtype=torch.float64)
    batch = ls.bundled_batch(["cat", "cat"], size=16)
    with pytest.raises(ls.NotApplicable, match="rank 1"):
        attack(seen(model, batch), head_residuals=residuals(model, batch))


def test_without_biases_the_softmax_fixes_the_scale():
    def plain():
        return nn.Sequential(
            nn.Flatten(), nn.Linear(192, 40, bias=False), nn.Tanh(), nn.Linear(40, 10, bias=False)
        ).double()

    model = wrapped(plain)
    batch = private(model)
    rec = attack(seen(model, batch))
    assert error(rec, batch) <= 1e-8
    assert rec.labels.tolist() == batch.labels.tolist()


def test_a_weight_delta_serves_as_well():
    model = loaded(FOUR.format("tanh"))
    batch = private(model)
    observation = seen(model, batch)
    delta = replace(observation, signal={n: -0.1 * g for n, g in observation.signal.items()})
    # The recursion does not mind the factor; the replay check, which believes in a gradient, does.
    with pytest.raises(ls.NotApplicable, match="differs from the observed one by 11"):
        attack(delta)
    rec = attack(delta, tolerance=20.0)
    assert error(rec, batch) <= 1e-6
    assert rec.labels.tolist() == batch.labels.tolist()


@pytest.mark.parametrize("threat", [ls.threats.HONEST_SERVER, ls.ThreatModel(name="knows nothing")])
def test_two_images_are_refused(threat):
    model = loaded(FOUR.format("tanh"))
    with pytest.raises(ls.NotApplicable, match=r"batch holds 2 images|several images"):
        attack(seen(model, private(model, 2), threat=threat))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("leakscope:resnet20", "'bn1' is a BatchNorm2d"),
        ("leakscope:mlp?activation=gelu", "'act1' is a GELU"),
        ("timm:vit_tiny_patch16_224", r"no plain chain.*'patch_embed\.norm'"),
    ],
)
def test_other_networks_are_refused_by_layer(name, layer):
    model = loaded(name, size=32)
    with pytest.raises(ls.NotApplicable, match=layer):
        attack(seen(model, private(model)))


def test_missing_or_dead_gradients_are_refused():
    model = loaded(FOUR.format("relu"))
    observation = seen(model, private(model))
    without = {n: g for n, g in observation.signal.items() if n != "fc2.weight"}
    with pytest.raises(ls.NotApplicable, match=r"fc2\.weight.*withheld"):
        attack(replace(observation, signal=without))
    dead = {n: torch.zeros_like(g) if n == "fc1.weight" else g for n, g in observation.signal.items()}
    with pytest.raises(ls.NotApplicable, match="zero everywhere"):
        attack(replace(observation, signal=dead))


def test_a_foreign_gradient_is_not_presented_as_an_image():
    model = loaded(FOUR.format("tanh"))
    mine, other = (seen(model, ls.bundled_batch([name], size=16)) for name in ls.bundled_names()[:2])
    mixed = dict(mine.signal) | {"fc1.weight": other.signal["fc1.weight"]}
    with pytest.raises(ls.NotApplicable, match="differs from the observed one"):
        attack(replace(mine, signal=mixed))
    noise = {n: torch.randn(g.shape, generator=seeded(2)) * g.std() for n, g in mine.signal.items()}
    with pytest.raises(ls.NotApplicable, match="rank above 1"):
        attack(replace(mine, signal=noise))


class Functional(nn.Module):
    """Activations as functions, dropout, an in-place layer, a reshape: still a chain."""

    def __init__(self, skip=False, twice=False):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(192, 24), nn.Linear(24, 24), nn.Linear(24, 10)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.3)
        self.skip, self.twice = skip, twice

    def forward(self, x):
        x = self.drop(self.relu(self.one(x.reshape(len(x), -1))))
        y = torch.tanh(self.two(x))
        if self.twice:
            y = torch.tanh(self.two(y))
        return self.three(x + y if self.skip else y)


def test_chains_are_followed_by_value():
    model = wrapped(Functional)
    chain = find_chain(model)
    assert chain.broken is None
    assert [(link.module, link.activation.name) for link in chain.links] == [
        ("one", "relu"),
        ("two", "tanh"),
        ("three", "identity"),
    ]
    batch = private(model)
    assert error(attack(seen(model, batch)), batch) <= 1e-5
    with pytest.raises(ls.NotApplicable, match=r"'drop' active"):
        attack(seen(model, batch, mode="train", stochastic=True))


@pytest.mark.parametrize(("option", "reason"), [("skip", "what reaches 'three'"), ("twice", "'two'.*runs twice")])
def test_broken_chains_say_where(option, reason):
    model = wrapped(lambda: Functional(**{option: True}))
    with pytest.raises(ls.NotApplicable, match=reason):
        attack(seen(model, private(model)))
