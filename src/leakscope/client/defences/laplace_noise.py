"""Laplace noise, as large as the gradient says (APRIL's scale)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor

from leakscope.client.defences._noise import add_noise, check_scale, noise_within
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting, Signal

__all__ = ["LaplaceNoise"]


@final
@register_defence("laplace-noise", cites="lu2022")
@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise(Defence):
    """Adds Laplace noise whose norm is ``scale`` times the gradient's.

    g + scale · ‖g‖ / √n · ε, with ε from the Laplace distribution of unit variance; n as for Gaussian noise.
    """

    scale: float = 0.1
    per: Literal["tensor", "signal", "entry"] = "tensor"

    def __post_init__(self) -> None:
        check_scale(self.scale, self.per)

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        return add_noise(signal, setting, generator, _laplace, scale=self.scale, per=self.per)

    def pool(self, signals: Sequence[Signal]) -> tuple[Signal, Defence]:
        mean, _ = Defence.pool(self, signals)
        return mean, replace(self, scale=self.scale / math.sqrt(len(signals)))

    def deviation(self, observed: Signal, batch_size: int) -> Mapping[str, float]:
        return noise_within(observed, scale=self.scale, per=self.per)


def _laplace(shape: torch.Size, **options: Any) -> Tensor:
    """By the inverse of its distribution function; unit variance."""
    u = torch.rand(shape, **options) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs()) / math.sqrt(2)
