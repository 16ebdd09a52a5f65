"""Learned perceptual image patch similarity (Zhang, Isola, Efros, Shechtman and Wang 2018), AlexNet, version 0.1."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.metrics._lpips_weights import Weights, find_weights
from leakscope.metrics.base import ImageShape, as_pairs, by_image, image_shape, metric, nan_scores

__all__ = ["lpips"]

# Below this side nothing is left for AlexNet's second pooling.
_SMALLEST = 31
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
_EPSILON = 1e-10


def _undefined(shape: ImageShape) -> str | None:
    channels, height, width = shape
    if channels not in (1, 3):
        return f"needs colour or greyscale images; these have {channels} channels"
    if min(height, width) < _SMALLEST:
        return f"not defined below {_SMALLEST} px, where AlexNet runs out of pixels; these are {height} × {width}"
    return None


@metric("lpips", higher_is_better=False, cites="zhang2018", undefined=_undefined)
def lpips(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Learned perceptual distance of each image (AlexNet, v0.1); 0 is perfect.

    (B, C, H, W) twice → (B,) float64: Σ over five layers of the mean over places of w · (f(x̂) − f(x))², where f are
    AlexNet's activations scaled to unit length across channels. Greyscale images are repeated to three channels. NaN
    for images below 31 px. Raises a :class:`~leakscope.errors.MissingExtra` if the real weights are not installed.
    """
    left, right = as_pairs(reconstruction, truth)
    if _undefined(image_shape(left)):
        return nan_scores(left)
    weights = find_weights()
    with torch.no_grad():
        return by_image(lambda x, y: _distance(x, y, weights), left.float(), right.float())


def _distance(left: Tensor, right: Tensor, weights: Weights) -> Tensor:
    """The distance of one pair, (1, C, H, W) each in [0, 1], as a float64 number."""
    convolutions, linear = weights
    total = torch.zeros((), dtype=torch.float64)
    layers = zip(_activations(left, convolutions), _activations(right, convolutions), linear, strict=True)
    for one, other, channel_weights in layers:  # (1, K, h, w) twice, (K,)
        difference = (_unit(one) - _unit(other)).square()
        total = total + (difference * channel_weights.view(1, -1, 1, 1)).sum(1).mean().double()
    return total


def _activations(images: Tensor, convolutions: tuple[tuple[Tensor, Tensor], ...]) -> list[Tensor]:
    """AlexNet's five rectified activations for pixels in [0, 1]."""
    shift, scale = (torch.tensor(values).view(1, 3, 1, 1) for values in (_SHIFT, _SCALE))
    hidden = (images.expand(-1, 3, -1, -1) * 2 - 1 - shift) / scale
    kept: list[Tensor] = []
    for number, (kernel, bias) in enumerate(convolutions):
        if number in (1, 2):
            hidden = F.max_pool2d(hidden, 3, stride=2)
        stride, padding = (4, 2) if number == 0 else (1, kernel.shape[-1] // 2)
        hidden = F.conv2d(hidden, kernel, bias, stride=stride, padding=padding).relu()
        kept.append(hidden)
    return kept


def _unit(activations: Tensor) -> Tensor:
    return activations / (activations.norm(dim=1, keepdim=True) + _EPSILON)
