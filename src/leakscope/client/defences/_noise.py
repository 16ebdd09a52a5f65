"""Noise relative to the size of what it hides, or of a deviation that is given."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.client.defences._parts import draw, each_gradient, finite, norm
from leakscope.errors import BadInput
from leakscope.types import Setting, Signal

__all__ = ["add_noise", "check_scale", "noise_within"]


def add_noise(
    signal: Signal,
    setting: Setting,
    generator: torch.Generator,
    sample: Callable[..., Tensor],
    *,
    scale: float,
    per: str,
) -> Signal:
    """g + scale · rms(g) · ε with ε of unit variance from ``sample``; rms over each tensor, over all, or 1."""
    buffers = {name for name, _ in setting.model.named_buffers()}
    own = {name: value for name, value in signal.items() if name not in buffers}
    overall = norm(own) / math.sqrt(max(sum(value.numel() for value in own.values()), 1)) if own else 0.0

    def noisy(value: Tensor) -> Tensor:
        size = 1.0 if per == "entry" else overall if per == "signal" else value.square().mean().sqrt()
        return value + scale * size * draw(sample, value, generator)

    return each_gradient(signal, setting, noisy)


def noise_within(observed: Signal, *, scale: float, per: str) -> dict[str, float]:
    """The noise's standard deviation in each tensor: what was sent has the size rms(g) · √(1 + scale²) by now."""
    own = {name: value for name, value in observed.items() if value.is_floating_point()}
    if per == "entry":
        return dict.fromkeys(own, scale)
    share = scale / math.sqrt(1 + scale**2)
    overall = float(norm(own)) / math.sqrt(max(sum(value.numel() for value in own.values()), 1)) if own else 0.0
    sizes = {name: overall if per == "signal" else float(v.square().mean().sqrt()) for name, v in own.items()}
    return {name: share * size for name, size in sizes.items()}


def check_scale(scale: object, per: object) -> None:
    finite("scale", scale)
    if per not in ("tensor", "signal", "entry"):
        raise BadInput(f"per is {per!r}; accepted: 'tensor', 'signal' or 'entry'.")
