"""Convolutions as matrices against torch, and the convolutional recursion against the truth."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.analytic import conv_recursion as recursion
from leakscope.attacks.analytic.chain import Link
from leakscope.types import InputSpec

LAYERS = [
    {"kernel_size": 3},
    {"kernel_size": 5, "stride": 2, "padding": 2},
    {"kernel_size": (3, 2), "stride": (1, 2), "padding": (0, 1)},
    {"kernel_size": 3, "dilation": 2, "padding": 1},
    {"kernel_size": 3, "groups": 2, "padding": 1},
    {"kernel_size": 4, "padding": "same"},
    {"kernel_size": 3, "padding": "valid", "bias": False},
]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def built(options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Conv2d(4, 6, **options).double()
    image = torch.randn(4, 8, 7, dtype=torch.float64, generator=seeded())
    output = layer(image[None])[0]
    link = Link(module="c", weight="w", bias="b", layer=layer, input=(4, 8, 7), output=tuple(output.shape))
    return layer, image, output, link


@pytest.mark.parametrize("options", LAYERS)
def test_matrices_agree_with_torch(options):
    layer, image, output, link = built(options)
    places = recursion._places(layer, link.input)
    forward = recursion._forward_matrix(layer.weight.detach(), places, link.input, layer.groups)
    bias = 0 if layer.bias is None else layer.bias[:, None, None]
    torch.testing.assert_close((forward @ image.flatten()).reshape(output.shape), (output - bias).detach())
    delta = torch.randn(output.shape, dtype=torch.float64, generator=seeded(1))
    image.requires_grad_()
    gradient, backward = torch.autograd.grad(layer(image[None]), (layer.weight, image), delta[None])
    matrix = recursion._gradient_matrix(delta, places, link.input, layer.groups)
    torch.testing.assert_close((matrix @ image.detach().flatten()).reshape(gradient.shape), gradient)
    torch.testing.assert_close(forward.T @ delta.flatten(), backward.flatten())
    torch.testing.assert_close(recursion.convolution_backward(link, delta), backward)


def observation(name, size, *, dtype=torch.float32, image="cat"):
    model = ls.load_model(name, num_classes=10, image_size=size, seed=0).to(dtype=dtype)
    batch = ls.bundled_batch([image], size=size)
    return ls.observe(model, batch, protocol=ls.FedSGD(), generator=seeded()), batch


def decibels(rec, batch):
    return float(-10 * (rec.images.double() - batch.images.double()).square().mean().log10())


def attack(seen, **options):
    return ls.attack("exact-git", **options)(seen, generator=seeded(1))


@pytest.mark.parametrize(("size", "dtype", "least"), [(16, torch.float32, 100), (16, torch.float64, 200)])
def test_small_sigmoid_lenet(size, dtype, least):
    seen, batch = observation("leakscope:lenet-dlg", size, dtype=dtype)
    rec = attack(seen)
    assert decibels(rec, batch) >= least
    assert rec.labels.tolist() == batch.labels.tolist()
    assert rec.evidence["layers"] == ["fc", "conv3", "conv2", "conv1"]
    assert rec.evidence["rank"] == rec.evidence["unknowns"] == [1, 192, 768, 768]


def test_sigmoid_lenet_at_full_size():
    seen, batch = observation("leakscope:lenet-dlg", 32)
    rec = attack(seen)
    assert decibels(rec, batch) >= 70
    assert rec.evidence["rank"] == [1, 768, 3072, 3072]


def small(activation, *, width=8, stride=1, size=8):
    side = size // stride
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=stride, padding=1),
            activation(),
            nn.Flatten(),
            nn.Linear(width * side * side, 10),
        )
    spec = InputSpec(shape=(3, size, size), num_classes=10)
    model = ls.VisionModel(module, input=spec, mean=[0.5] * 3, std=[0.25] * 3, name="small")
    batch = ls.bundled_batch(["cat"], size=size)
    return ls.observe(model, batch, protocol=ls.FedSGD(), generator=seeded()), batch


@pytest.mark.parametrize("activation", [nn.Tanh, nn.LeakyReLU, nn.ReLU, nn.Identity])
def test_other_activations(activation):
    seen, batch = small(activation)
    rec = attack(seen)
    assert decibels(rec, batch) >= 70


def test_too_few_equations_are_refused_with_their_number():
    seen, _ = small(nn.Tanh, width=2, stride=4)
    with pytest.raises(ls.NotApplicable, match=r"192 unknowns for 62 equations \(54 from the gradient, 8"):
        attack(seen)


def test_dependent_equations_are_refused_with_their_rank():
    # A 1 × 1 kernel with one output channel: its gradient holds one number for each input channel.
    layer = nn.Conv2d(2, 2, 1).double()
    with torch.no_grad():
        layer.weight[1] = layer.weight[0]
    link = Link(module="c", weight="w", bias="b", layer=layer, input=(2, 2, 2), output=(2, 2, 2))
    image = torch.rand(2, 2, 2, dtype=torch.float64, generator=seeded())
    output = layer(image[None])[0].detach()
    gradient = torch.einsum("ohw,chw->oc", output, image)[..., None, None]
    with pytest.raises(ls.NotApplicable, match=r"rank \d of 8"):
        recursion.solve_convolution(link, output, gradient, output, largest=100)


def test_too_large_systems_are_refused():
    seen, _ = small(nn.Tanh)
    with pytest.raises(ls.NotApplicable, match="more than 100"):
        attack(seen, largest=100)


def test_batches_and_foreign_gradients_are_refused():
    seen, _ = small(nn.Tanh)
    two = ls.bundled_batch(list(ls.bundled_names())[:2], size=8)
    pair = ls.observe(seen.model, two, protocol=ls.FedSGD(), generator=seeded())
    chances = seen.model(two.images).softmax(dim=1).detach()
    with pytest.raises(ls.NotApplicable, match="holds for one image"):
        attack(pair, head_residuals=(chances - F.one_hot(two.labels, 10)) / 2)
    foreign = dict(seen.signal) | {"0.weight": pair.signal["0.weight"]}
    with pytest.raises(ls.NotApplicable, match="differs from the observed one"):
        attack(replace(seen, signal=foreign))
