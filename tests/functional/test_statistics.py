"""Statistics read back from running averages, against the batches; statistics of norms, against the norms."""

import pytest
import torch
from torch import nn

from leakscope.errors import BadInput
from leakscope.functional.statistics import batch_moments, moments


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 1.7 * values + 0.4


def trained(momentum: float | None, steps: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(5, momentum=momentum).double()
    for seed in range(steps):
        layer(draw(3, 5, 4, 4, seed=100 + seed))
    return layer


def kept(layer: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.running_mean.clone(), layer.running_var.clone()


@pytest.mark.parametrize("momentum", [0.1, 0.03, 1.0, None])
@pytest.mark.parametrize("earlier", [0, 4])
@pytest.mark.parametrize("size", [1, 2, 16])
def test_one_step_gives_the_batch_back(momentum, earlier, size):
    layer = trained(momentum, earlier)
    before, x = kept(layer), draw(size, 5, 4, 3, seed=7)
    layer(x)
    mean, variance = batch_moments(before, kept(layer), momentum=momentum, count=size * 12, tracked=earlier)
    assert torch.allclose(mean, x.mean((0, 2, 3)), rtol=1e-9)
    assert torch.allclose(variance, x.var((0, 2, 3), correction=0), rtol=1e-9)


def test_the_count_is_that_of_values_not_of_images():
    layer, x = trained(0.1, 2), draw(2, 5, 4, 4, seed=7)
    before = kept(layer)
    layer(x)
    _, wrong = batch_moments(before, kept(layer), momentum=0.1, count=2)
    truth = x.var((0, 2, 3), correction=0)
    assert float(((wrong - truth) / truth).abs().max()) > 0.4


@pytest.mark.parametrize("momentum", [0.2, None])
def test_several_steps_give_their_weighted_mean(momentum):
    layer = trained(momentum, 3)
    before, batches = kept(layer), [draw(2, 5, 4, 4, seed=seed) for seed in (1, 2, 3)]
    for x in batches:
        layer(x)
    mean, _ = batch_moments(before, kept(layer), momentum=momentum, count=32, steps=3, tracked=3)
    weights = torch.tensor([0.8**2, 0.8, 1.0] if momentum else [1.0, 1.0, 1.0], dtype=torch.float64)
    means = torch.stack([x.mean((0, 2, 3)) for x in batches])
    assert torch.allclose(mean, (weights / weights.sum()) @ means, rtol=1e-9)


def test_what_cannot_be_read_back_is_refused():
    one = (torch.zeros(2), torch.ones(2))
    for changes, says in (
        ({"count": 1}, "1 value"),
        ({"momentum": 0.0}, "momentum is 0"),
        ({"steps": 0}, "steps is 0"),
    ):
        with pytest.raises(BadInput, match=says):
            batch_moments(one, one, **{"momentum": 0.1, "count": 8, **changes})
    with pytest.raises(BadInput, match="Linear"):
        moments(nn.Linear(2, 2), torch.zeros(1, 2))


class LayerNorm2d(nn.LayerNorm):
    """As timm has it: over the channels of (B, C, H, W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm2d(6), (1, 6, 4, 4)),
        (nn.BatchNorm1d(6), (4, 6)),
        (nn.InstanceNorm2d(6), (1, 6, 4, 4)),
        (nn.GroupNorm(3, 6), (1, 6, 4, 4)),
        (nn.LayerNorm(6), (1, 5, 6)),
        (nn.LayerNorm((5, 6)), (1, 3, 5, 6)),
        (LayerNorm2d(6), (1, 6, 4, 4)),
        (nn.RMSNorm(6), (1, 5, 6)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_the_layer_normalises_with_these(layer, shape):
    """(x − mean)/√variance is what the layer puts out, for one image (ε is far below the tolerance)."""
    layer, x = layer.double(), draw(*shape)
    mean, variance = moments(layer, x)
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        extra = 0 if isinstance(layer, LayerNorm2d) else len(layer.normalized_shape)
        stats = [value[(None, ..., *(None,) * extra)] for value in (mean, variance)]
        stats = [value[:, None] for value in stats] if isinstance(layer, LayerNorm2d) else stats
    else:
        repeat = x.shape[1] // len(mean)
        tail = (1,) * (x.ndim - 2)
        stats = [value.repeat_interleave(repeat).view(1, -1, *tail) for value in (mean, variance)]
    expected = (x - stats[0]) / stats[1].sqrt()
    assert torch.allclose(layer(x), expected, atol=1e-3)
    assert not torch.allclose(x, expected, atol=0.1)


def test_images_are_averaged():
    layer, x = nn.LayerNorm(6), draw(3, 5, 6)
    mean, variance = moments(layer, x)
    assert torch.allclose(mean, x.mean(-1).mean(0))
    assert torch.allclose(variance, x.var(-1, correction=0).mean(0))
