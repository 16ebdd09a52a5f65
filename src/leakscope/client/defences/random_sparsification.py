"""Random sparsification: a random share of the entries is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from leakscope.client.defences._parts import draw, each_gradient, finite, mask_like, sparse_bytes
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting, Signal

__all__ = ["RandomSparsification"]


@final
@register_defence("random-sparsification", cites="wangni2018")
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSparsification(Defence):
    """Sends each entry with probability ``share``, divided by it, so that the mean over rounds is the gradient."""

    share: float = 0.1

    def __post_init__(self) -> None:
        finite("share", self.share, high=1.0, strict=True)

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        def thinned(value: Tensor) -> Tensor:
            return value * (draw(torch.rand, value, generator) < self.share) / self.share

        return each_gradient(signal, setting, thinned)

    def as_seen(self, replayed: Signal, observed: Signal) -> Signal:
        """The mask is in plain sight, and the factor is known."""
        return {name: value / self.share for name, value in mask_like(replayed, observed).items()}

    def pool(self, signals: Sequence[Signal]) -> tuple[Signal, Defence]:
        """Every round sends other entries: each is taken from the rounds that sent it, where it is exact."""
        pooled: dict[str, Tensor] = {}
        for name in signals[0]:
            stacked = torch.stack([signal[name] for signal in signals])
            count = stacked.count_nonzero(0).clamp_min(1)
            pooled[name] = stacked.sum(0) / count if stacked.is_floating_point() else stacked[0]
        return pooled, self

    def bytes_sent(self, signal: Signal) -> int:
        return sparse_bytes(signal)
