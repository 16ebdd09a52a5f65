"""SPEAR: batches exactly where a fully connected layer has a ReLU behind it, refused with the reason elsewhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vits import NOBODY, batch, picture, seen, wrap
from torch import nn

import leakscope as ls


def photographs(count, *, size=16):
    """Different bundled photographs."""
    return ls.bundled_batch(list(ls.bundled_names()[:count]), size=size)


def perceptron(hidden="200,200", *, activation="relu", seed=0, size=16):
    return ls.load_model(
        f"leakscope:mlp?hidden={hidden}&activation={activation}", num_classes=10, image_size=size, seed=seed
    )


def many(model, count, *, seed):
    """Random pictures whose labels repeat."""
    return ls.Batch(images=picture(model.input.shape, count, seed), labels=torch.arange(count) % 10)


def attack(observation, **options):
    return ls.attack("spear", **options)(observation, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("threat", [NOBODY, ls.threats.HONEST_SERVER], ids=lambda t: t.name)
def test_every_image_of_a_batch(count, threat):
    """Measured: above 155 dB each."""
    private = photographs(count)
    result = attack(seen(perceptron(), private, threat=threat))
    scores = ls.score(result, private, ["psnr"])
    assert float(scores["psnr"].min()) > 100
    assert bool(scores.labels_correct.all())
    assert result.evidence["rank"] == count
    assert result.evidence["self-check"] < 0.02
    assert result.evidence["condition"] >= 1
    assert (result.evidence["samples"] == 0) == (count == 1)


@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 4), width=st.sampled_from([200, 256]), seed=st.integers(0, 1000))
def test_small_batches_are_exact_or_refused(count, width, seed):
    """Never garbage: what comes back is exact."""
    model = perceptron(str(width), seed=seed, size=8)
    private = batch(model, count, seed=seed)
    try:
        result = attack(seen(model, private, threat=NOBODY), samples=1 << 15)
    except ls.NotApplicable:
        return
    assert float(ls.score(result, private, ["psnr"])["psnr"].min()) > 60


def test_the_same_seed_gives_the_same_bits():
    observation = seen(perceptron(), photographs(4))
    first, second = attack(observation), attack(observation)
    assert torch.equal(first.images, second.images)
    assert first.evidence["samples"] == second.evidence["samples"]


@pytest.mark.parametrize("activation", ["tanh", "leaky"])
def test_other_activations_are_refused(activation):
    with pytest.raises(ls.NotApplicable, match="no ReLU follows it"):
        attack(seen(perceptron(activation=activation), photographs(2)))


def test_a_layer_without_bias_is_refused():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(192, 100, bias=False), nn.ReLU(), nn.Linear(100, 10))
    model = wrap(module.double().eval(), (3, 8, 8), 10)
    with pytest.raises(ls.NotApplicable, match="has no bias"):
        attack(seen(model, batch(model, 2)))


def test_equal_images_lower_the_rank():
    one = photographs(1)
    twice = ls.Batch(images=one.images.repeat(2, 1, 1, 1), labels=torch.tensor([1, 1]))
    with pytest.raises(ls.NotApplicable, match="rank 1, and the batch holds 2 images"):
        attack(seen(perceptron(), twice))


def test_a_wrong_batch_size_is_refused():
    from dataclasses import replace

    observation = seen(perceptron(), photographs(3))
    wrong = replace(observation, input=replace(observation.input, batch_size=2))
    with pytest.raises(ls.NotApplicable, match="rank 3, and the batch holds 2 images"):
        attack(wrong)


def test_sixteen_images():
    """Normalised, as clients do: around zero, images share fewer units."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(192, 200), nn.ReLU(), nn.Linear(200, 10))
    model = wrap(module.double().eval(), (3, 8, 8), 10)
    private = many(model, 16, seed=3)
    result = attack(seen(model, private, threat=NOBODY))
    assert float(ls.score(result, private, ["psnr"])["psnr"].min()) > 60
    assert result.evidence["rank"] == 16


def test_the_budget_is_a_count():
    with pytest.raises(ls.NotApplicable, match="2 starts did not show 8 sparse columns"):
        attack(seen(perceptron(), photographs(8)), samples=2)


def test_a_full_basis_never_grows():
    """Thirty-two images in a narrow layer: the basis is nearly singular long before it is right."""
    model = perceptron("64", size=8)
    private = many(model, 32, seed=0)
    with pytest.raises(ls.NotApplicable, match="128 starts did not show 32 sparse columns"):
        attack(seen(model, private, threat=NOBODY), samples=128)


def test_gradients_that_do_not_belong_together_are_refused():
    other = seen(perceptron(), ls.bundled_batch(list(ls.bundled_names()[4:7]), size=16)).signal
    mixed = seen(perceptron(), photographs(3), signal=lambda s: s | {"fc1.bias": other["fc1.bias"]})
    with pytest.raises(ls.NotApplicable, match="not in the column space"):
        attack(mixed)


def test_missing_gradients_are_refused():
    def without(signal):
        return {name: value for name, value in signal.items() if name != "fc1.bias"}

    with pytest.raises(ls.NotApplicable, match="not in the signal"):
        attack(seen(perceptron("200"), photographs(2), signal=without))
