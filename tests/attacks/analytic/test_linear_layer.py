"""The input of a biased linear layer, and what can be undone before it."""

import pytest
import torch
from small_vits import NOBODY, batch, psnr, run, seen, wrap
from torch import nn

import leakscope as ls


def model_of(*layers, size=8, channels=3, classes=5, dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(*[layer() for layer in layers])
        # Small biases and spread weights, so that no unit saturates.
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.2)
    return wrap(module.to(dtype).eval(), (channels, size, size), classes)


def test_the_first_layer_takes_the_image():
    model = ls.load_model("leakscope:mlp?hidden=64,64&activation=relu", num_classes=10, image_size=16)
    private = ls.bundled_batch(["cat"], size=16)
    result = run("linear-layer", seen(model, private))
    assert psnr(result, private) > 100
    assert result.evidence["layer"] == "fc1"
    assert result.evidence["undone"] == []
    assert torch.equal(result.labels, private.labels)


@pytest.mark.parametrize("factor", [-0.1, 1e5])
def test_any_scale(factor):
    model = ls.load_model("leakscope:mlp?hidden=32", num_classes=10, image_size=8)
    private = ls.bundled_batch(["cat"], size=8)
    scaled = seen(model, private, signal=lambda s: {k: factor * v for k, v in s.items()})
    assert psnr(run("linear-layer", scaled), private) > 100


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, lambda: nn.LeakyReLU(0.1), nn.Identity])
def test_layers_before_it_are_undone(activation):
    """The first linear layer has no bias, so the image comes from the second one, through the first."""
    model = model_of(
        nn.Flatten,
        lambda: nn.Linear(192, 200, bias=False),
        activation,
        lambda: nn.Linear(200, 8),
        lambda: nn.Linear(8, 5),
    )
    private = batch(model)
    result = run("linear-layer", seen(model, private))
    assert psnr(result, private) > 100
    assert result.evidence["undone"] == ["1"]
    assert result.evidence["condition"] > 1


def test_convolutions_of_full_column_rank_are_undone():
    model = model_of(
        lambda: nn.Conv2d(3, 12, 3, padding=1), nn.Tanh, lambda: nn.Conv2d(12, 14, 3, padding=1), nn.Flatten,
        lambda: nn.Linear(14 * 64, 5),
    )  # fmt: skip
    private = batch(model)
    result = run("linear-layer", seen(model, private))
    assert psnr(result, private) > 80
    assert result.evidence["undone"] == ["0", "2"]


def test_refusals_name_what_is_in_the_way():
    relu = model_of(nn.Flatten, lambda: nn.Linear(192, 200, bias=False), nn.ReLU, lambda: nn.Linear(200, 5))
    with pytest.raises(ls.NotApplicable, match="relu behind '1' loses"):
        run("linear-layer", seen(relu, batch(relu)))
    narrow = model_of(nn.Flatten, lambda: nn.Linear(192, 100, bias=False), lambda: nn.Linear(100, 5))
    with pytest.raises(ls.NotApplicable, match="192 numbers to 100"):
        run("linear-layer", seen(narrow, batch(narrow)))
    bare = model_of(nn.Flatten, lambda: nn.Linear(192, 5, bias=False))
    with pytest.raises(ls.NotApplicable, match="no bias"):
        run("linear-layer", seen(bare, batch(bare)))
    strided = model_of(lambda: nn.Conv2d(3, 4, 3, stride=2), nn.Sigmoid, nn.Flatten, lambda: nn.Linear(36, 5))
    with pytest.raises(ls.NotApplicable, match="192 numbers to 36"):
        run("linear-layer", seen(strided, batch(strided)))
    pooled = model_of(lambda: nn.Conv2d(3, 4, 3), lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten, lambda: nn.Linear(4, 5))
    with pytest.raises(ls.NotApplicable, match="AdaptiveAvgPool2d"):
        run("linear-layer", seen(pooled, batch(pooled)))


@pytest.mark.parametrize("count", [2, 5])
def test_a_batch_raises_the_rank(count):
    model = model_of(nn.Flatten, lambda: nn.Linear(192, 50), nn.Tanh, lambda: nn.Linear(50, 5))
    private = batch(model, count)
    with pytest.raises(ls.NotApplicable, match=f"{count} images"):
        run("linear-layer", seen(model, private))
    with pytest.raises(ls.NotApplicable, match="rank one"):
        run("linear-layer", seen(model, private, threat=NOBODY))


def test_missing_and_masked():
    model = model_of(nn.Flatten, lambda: nn.Dropout(0.5), lambda: nn.Linear(192, 50), nn.Tanh, lambda: nn.Linear(50, 5))
    private = batch(model)
    with pytest.raises(ls.NotApplicable, match="not in the signal"):
        run("linear-layer", seen(model, private, signal=lambda s: {"4.weight": s["4.weight"]}))
    with pytest.raises(ls.NotApplicable, match="random mask"):
        run("linear-layer", seen(model, private, protocol=ls.FedSGD(mode="train", stochastic=True)))
    assert psnr(run("linear-layer", seen(model, private)), private) > 100


def test_saturated_units_are_refused():
    model = model_of(nn.Flatten, lambda: nn.Linear(192, 200, bias=False), nn.Sigmoid, lambda: nn.Linear(200, 5))
    model.module[1].weight.data.mul_(1e3)
    with pytest.raises(ls.NotApplicable, match="saturated"):
        run("linear-layer", seen(model, batch(model)))
