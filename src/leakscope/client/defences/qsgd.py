"""QSGD: few levels, rounded at random so that the mean is right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.client.defences._parts import each_gradient, whole
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting, Signal

__all__ = ["QSGD"]

_NORM_BYTES: Final = 4


@final
@register_defence("qsgd", cites="alistarh2017")
@dataclass(frozen=True, slots=True, kw_only=True)
class QSGD(Defence):
    """Rounds each entry at random to one of ``levels`` sizes, so that the mean over rounds is the gradient.

    In buckets of ``bucket`` entries: ‖v‖ · sign(v_i) · ξ_i / s with ξ_i one of the two whole numbers around
    s|v_i| / ‖v‖ and E ξ_i = s|v_i| / ‖v‖. No replay can tell how the client's dice fell; a server that knows the
    defence averages rounds.
    """

    levels: int = 4
    bucket: int = 128

    def __post_init__(self) -> None:
        whole("levels", self.levels)
        whole("bucket", self.bucket)

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        def rounded(value: Tensor) -> Tensor:
            flat = value.flatten()
            rows = F.pad(flat, (0, -len(flat) % self.bucket)).view(-1, self.bucket)
            norms = rows.norm(dim=1, keepdim=True)
            place = self.levels * rows.abs() / norms.clamp_min(torch.finfo(value.dtype).tiny)
            dice = torch.rand(rows.shape, generator=generator, dtype=torch.float64).to(place)
            steps = (place + dice).floor()
            return (norms * rows.sign() * steps / self.levels).flatten()[: len(flat)].view_as(value)

        return each_gradient(signal, setting, rounded)

    def bytes_sent(self, signal: Signal) -> int:
        """log₂(2s + 1) bits for each entry, rounded up, and four bytes for each bucket's norm."""
        bits = math.ceil(math.log2(2 * self.levels + 1))
        total = 0
        for value in signal.values():
            packed = -(-value.numel() * bits // 8) + _NORM_BYTES * -(-value.numel() // self.bucket)
            total += min(packed, value.numel() * value.element_size())
        return total
