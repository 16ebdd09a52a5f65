import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from leakscope.functional import distances, priors

SHAPES = [(3, 4), (5,), (2, 3, 2, 2)]


def tensors(seed, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=grad) for s in SHAPES]


def flat(parts):
    return torch.cat([p.reshape(-1) for p in parts])


def test_cosine_against_torch():
    a, b = tensors(0, grad=True), tensors(1)
    ours, theirs = distances.cosine(a, b), 1 - cosine_similarity(flat(a), flat(b), dim=0)
    assert torch.allclose(ours, theirs)
    for mine, other in zip(torch.autograd.grad(ours, a), torch.autograd.grad(theirs, a), strict=True):
        assert torch.allclose(mine, other, rtol=1e-10)


def test_cosine_scales_with_upstream_gradient():
    a, b = tensors(0, grad=True), tensors(1)
    once = torch.autograd.grad(distances.cosine(a, b), a)
    thrice = torch.autograd.grad(3 * distances.cosine(a, b), a)
    assert all(torch.allclose(3 * x, y) for x, y in zip(once, thrice, strict=True))


def test_cosine_of_nothing_is_one_and_pulls_nowhere():
    a = [torch.zeros(4, requires_grad=True)]
    loss = distances.cosine(a, [torch.ones(4)])
    assert loss == 1
    assert torch.autograd.grad(loss, a)[0].abs().sum() == 0


def test_squared_l2():
    a, b = tensors(0), tensors(1)
    assert torch.allclose(distances.squared_l2(a, b), (flat(a) - flat(b)).square().sum())


def test_tag_weights_early_layers_most():
    a, b = tensors(0), tensors(1)
    by_hand = sum(
        math.exp(-2.0 * i / 3) * ((x - y).square().sum() + 0.3 * (x - y).abs().sum())
        for i, (x, y) in enumerate(zip(a, b, strict=True))
    )
    assert torch.allclose(distances.tag(a, b, alpha=0.3, decay=2.0), by_hand)


@pytest.mark.parametrize("distance", [distances.squared_l2, distances.cosine])
def test_signals_of_different_length_are_refused(distance):
    with pytest.raises(ValueError, match=r"zip|replayed"):
        distance(tensors(0), tensors(1)[:2])


def test_total_variation_by_hand():
    image = torch.tensor([[0.0, 1.0], [3.0, 7.0]]).reshape(1, 1, 2, 2)
    assert priors.total_variation(image) == (1 + 4) / 2 + (3 + 6) / 2
    expected = math.hypot(1, 4) + math.hypot(3, 6) + 7 + 2
    assert float(priors.total_variation_l2(image)) == pytest.approx(expected)


def test_l2_norm_is_a_mean_over_images():
    images = torch.stack([torch.full((1, 2, 2), 1.0), torch.full((1, 2, 2), 3.0)])
    assert float(priors.l2_norm(images)) == pytest.approx((2 + 6) / 2)
