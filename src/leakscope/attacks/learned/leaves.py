"""Dead leaves: pictures of nothing that have the edges, shades and grain of photographs, for who has no images."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.attacks.decoders import Pink

__all__ = ["dead_leaves"]

_LEAVES = 40
_SMALL = 64
"""Smaller pictures are drawn at twice their size, so that edges are not jagged."""


def dead_leaves(count: int, shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
    """``count`` images of ``shape`` in [0, 1]: ellipses and boxes that lie over one another, lit, blurred, with grain.

    Occlusion is what gives photographs their statistics (Lee, Mumford and Huang 2001), and networks learn from such
    pictures what carries over to photographs (Baradad et al. 2021).
    """
    channels, height, width = shape
    finer = 2 if min(height, width) < _SMALL else 1
    tall, wide = finer * height, finer * width
    side = max(tall, wide)

    def uniform(*sizes: int) -> Tensor:
        return torch.rand(count, *sizes, generator=generator)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(count, *sizes, generator=generator)

    def colour() -> Tensor:
        return (uniform(1, 1, 1) + 0.15 * normal(channels, 1, 1)).clamp(0, 1)

    images = colour().expand(count, channels, tall, wide)
    least = 0.03 * side * 4 ** uniform(1, 1)
    for _ in range(_LEAVES):
        radius = (least * (1 - 0.995 * uniform(1, 1)).rsqrt()).clamp_max(side)  # density r⁻³: alike at every scale
        down = torch.arange(tall)[:, None] - tall * uniform(1, 1)
        across = torch.arange(wide) - wide * uniform(1, 1)
        angle, flat = math.pi * uniform(1, 1), 0.3 + 0.7 * uniform(1, 1)
        u = across * angle.cos() + down * angle.sin()
        v = (down * angle.cos() - across * angle.sin()) / flat
        far = torch.where(uniform(1, 1) < 0.5, torch.maximum(u.abs(), v.abs()), torch.hypot(u, v))
        lit = colour() + (0.3 * normal(1, 1) * u / side)[:, None]
        images = torch.where((far < radius)[:, None], lit.clamp(0, 1), images)
    shade = F.interpolate(normal(1, 4, 4), size=(height, width), mode="bicubic") * 0.15 * uniform(1, 1, 1)
    out_of_focus = max(height, width) / 27 * uniform(1, 1, 1) * uniform(1, 1, 1)
    images = _blurred(F.avg_pool2d(images, finer) + shade, out_of_focus)
    grain = Pink(shape=(count, *shape))(normal(*shape))
    return (images + 0.1 * uniform(1, 1, 1).square() * grain).clamp(0, 1)


def _blurred(images: Tensor, sigma: Tensor) -> Tensor:
    """Each image under a Gaussian of its own width (N, 1, 1, 1), in pixels."""
    height, width = images.shape[-2:]
    square = torch.fft.fftfreq(height)[:, None].square() + torch.fft.rfftfreq(width).square()
    return torch.fft.irfft2(
        torch.fft.rfft2(images) * (-2 * (math.pi * sigma).square() * square).exp(), s=(height, width)
    )
