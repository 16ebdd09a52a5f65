"""Top-k: only the largest entries are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from leakscope.client.defences._parts import each_gradient, finite, mask_like, sparse_bytes
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting, Signal

__all__ = ["TopK"]


@final
@register_defence("top-k", cites="lin2018")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Defence):
    """Sends only the ``share`` of each tensor's entries that is largest in size; the rest arrive as zeros."""

    share: float = 0.1

    def __post_init__(self) -> None:
        finite("share", self.share, high=1.0, strict=True)

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        return each_gradient(signal, setting, self._largest)

    def as_seen(self, replayed: Signal, observed: Signal) -> Signal:
        """The mask is in plain sight: what was not sent is not matched."""
        return mask_like(replayed, observed)

    def bytes_sent(self, signal: Signal) -> int:
        return sparse_bytes(signal)

    def _largest(self, value: Tensor) -> Tensor:
        flat = value.flatten()
        kept = flat.abs().topk(max(1, round(self.share * flat.numel()))).indices
        return torch.zeros_like(flat).index_copy_(0, kept, flat[kept]).view_as(value)
