"""Gaussian noise, as large as the gradient says (APRIL's scale)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch

from leakscope.client.defences._noise import add_noise, check_scale, noise_within
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting, Signal

__all__ = ["GaussianNoise"]


@final
@register_defence("gaussian-noise", cites="lu2022")
@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(Defence):
    """Adds Gaussian noise whose norm is ``scale`` times the gradient's.

    g + scale · ‖g‖ / √n · N(0, 1), over each tensor's n entries, or over those of the whole ``signal``. Per
    ``entry`` the deviation is ``scale`` itself, whatever the size of g.
    """

    scale: float = 0.1
    per: Literal["tensor", "signal", "entry"] = "tensor"

    def __post_init__(self) -> None:
        check_scale(self.scale, self.per)

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        return add_noise(signal, setting, generator, torch.randn, scale=self.scale, per=self.per)

    def pool(self, signals: Sequence[Signal]) -> tuple[Signal, Defence]:
        mean, _ = Defence.pool(self, signals)
        return mean, replace(self, scale=self.scale / math.sqrt(len(signals)))

    def deviation(self, observed: Signal, batch_size: int) -> Mapping[str, float]:
        return noise_within(observed, scale=self.scale, per=self.per)
