"""Sign: one bit for each entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.client.defences._parts import each_gradient
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting, Signal

__all__ = ["Sign"]

_SOFTNESS: Final = 0.1
_SCALE_BYTES: Final = 4


@final
@register_defence("sign", cites="bernstein2018")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sign(Defence):
    """Sends the sign of each entry only, one bit, and one size for each tensor: mean|g| · sign(g).

    Without ``scaled`` the size is 1 everywhere, as in signSGD. A zero is sent as plus.
    """

    scaled: bool = True

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        def signs(value: Tensor) -> Tensor:
            size = value.abs().mean() if self.scaled else torch.ones((), dtype=value.dtype, device=value.device)
            return torch.where(value < 0, -size, size)

        return each_gradient(signal, setting, signs)

    def as_seen(self, replayed: Signal, observed: Signal) -> Signal:
        """A smooth sign: size · tanh(g / s), s a tenth of the replay's mean size: only signs have to agree."""
        seen: dict[str, Tensor] = {}
        for name, value in replayed.items():
            spread = _SOFTNESS * value.detach().abs().mean().clamp_min(torch.finfo(value.dtype).tiny)
            size = observed[name].abs().mean() if name in observed else 1.0
            seen[name] = size * torch.tanh(value / spread)
        return seen

    def bytes_sent(self, signal: Signal) -> int:
        """A bit for each entry and four bytes for each tensor's size; what is no sign (buffers) as it is."""
        total = 0
        for value in signal.values():
            sizes = value.abs()
            bits = value.is_floating_point() and value.numel() > 1 and bool((sizes == sizes.flatten()[0]).all())
            dense = value.numel() * value.element_size()
            total += -(-value.numel() // 8) + _SCALE_BYTES if bits else dense
        return total
