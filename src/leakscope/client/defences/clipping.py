"""Clipping: the update is scaled down to a largest norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from leakscope.client.defences._parts import finite, norm
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting, Signal

__all__ = ["Clipping"]


@final
@register_defence("clipping", cites="abadi2016")
@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping(Defence):
    """Scales the whole update down to a norm of at most ``norm``: g · min(1, norm / ‖g‖)."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        finite("norm", self.norm, strict=True)

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        buffers = {name for name, _ in setting.model.named_buffers()}
        own = {name: value for name, value in signal.items() if name not in buffers}
        return {**signal, **self._clipped(own)}

    def as_seen(self, replayed: Signal, observed: Signal) -> Signal:
        """The same: it takes no secret to clip."""
        return self._clipped(replayed)

    def _clipped(self, signal: Signal) -> Signal:
        if not signal:
            return signal
        factor = (self.norm / norm(signal).clamp_min(torch.finfo(torch.float32).tiny)).clamp(max=1.0)
        return {name: value * factor for name, value in signal.items()}
