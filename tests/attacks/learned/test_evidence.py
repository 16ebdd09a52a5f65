"""What a convolution's gradient adds: nothing that is not there, and much where it is."""

import pytest
import torch
from cases import lenet, seeded
from torch import nn
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.learned.evidence import ConvEvidence


def crops(count, seed, size=8):
    """Pieces of the bundled photographs: pictures with detail, which a regression alone does not give back."""
    draw, whole = seeded(seed), ls.bundled_batch(size=64, num_classes=4)
    corners = torch.randint(64 - size, (count, 2), generator=draw).tolist()
    which = torch.randint(len(whole), (count,), generator=draw).tolist()
    images = [whole.images[k, :, y : y + size, x : x + size] for k, (y, x) in zip(which, corners, strict=True)]
    return ls.Batch(images=torch.stack(images), labels=torch.randint(4, (count,), generator=draw))


def held_out(evidence, defences=()):
    method = ls.attack("git-coarse", steps=1, hidden=8, bins=64, evidence=evidence)
    fitted = method.fit(crops(300, 1), ls.FedSGD(), model=lenet(), defences=defences, generator=seeded())
    return fitted.held_out


def test_it_finds_what_regression_cannot():
    assert held_out(True) < 0.05 * held_out(False)


def test_under_noise_it_is_weighed_down_and_still_helps():
    noise = [ls.defence("gaussian-noise", scale=0.1)]
    assert held_out(True, noise) < 0.8 * held_out(False, noise)


@pytest.mark.parametrize(("stride", "padding"), [(1, 2), (2, 1), (3, 0)])
def test_its_linear_maps_are_those_of_the_layer(stride, padding):
    conv = nn.Conv2d(2, 3, 3, stride=stride, padding=padding).double()
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.normal_(generator=seeded(1))
    evidence = ConvEvidence(conv, (2, 7, 7)).double()
    a = torch.randn(4, 2, 7, 7, generator=seeded(2), dtype=torch.float64, requires_grad=True)
    z = conv(a)
    delta = torch.randn(z.shape, generator=seeded(3), dtype=torch.float64)
    (below,) = torch.autograd.grad((z * delta).sum(), a)
    assert torch.allclose(evidence.below(delta.flatten(2)), below.flatten(1))
    wanted = torch.stack(
        [
            torch.autograd.grad((F.conv2d(one[None], conv.weight, None, stride, padding) * back).sum(), conv.weight)[0]
            for one, back in zip(a.detach(), delta, strict=True)
        ]
    ).flatten(2)
    evidence.fit(a.detach().flatten(1), wanted, delta.flatten(2), z.detach().flatten(1))
    assert float(evidence.output) < 1e-9
    assert float(evidence.floor) < 1e-9
    start = torch.zeros(4, 98, dtype=torch.float64)
    found = evidence(start, torch.ones(98, dtype=torch.float64), wanted, delta.flatten(2), z.detach().flatten(1))
    near = (found - a.detach().flatten(1)).norm() / a.detach().norm()
    assert float(near) < 0.9  # nearer than the start; how near depends on how many equations the layer gives
    blind = evidence(start, torch.zeros(98, dtype=torch.float64), wanted, delta.flatten(2), z.detach().flatten(1))
    assert torch.equal(blind, start)  # where nothing is in doubt, nothing changes
