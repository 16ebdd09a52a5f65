"""Inverses of parts of a network: small, residual, with no norms, since what those divide out is part of the answer."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.learned.scaling import convolution, linear

__all__ = ["InverseBlock", "InverseRows"]


@final
class InverseBlock(nn.Module):
    """A residual block turned round: (C, H, W) ↦ (C', H', W'). Two 3 × 3 convolutions, and a 1 × 1 beside them.

    It begins as what stands beside them alone: the identity, where the shapes are the same. Where H' = rH and W' = rW,
    everything happens at the small size, and r² values for each output channel are laid out as its r × r pixels: each
    pixel has weights of its own, and no large state of many channels is kept. Other sizes are made by repeating pixels.
    """

    def __init__(self, before: tuple[int, ...], after: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__()
        inner, self._size = max(before[0], after[0], width), after[1:]
        times = self._size[0] // before[1]
        self._times = times if self._size == (times * before[1], times * before[2]) else 1
        outer = after[0] * self._times**2
        self.first = convolution(before[0], inner, 3, generator)
        self.second = convolution(inner, outer, 3, generator, zero=True)
        self.beside = convolution(before[0], outer, 1, generator)
        if before == after:
            with torch.no_grad():
                nn.init.dirac_(self.beside.weight)

    def forward(self, features: Tensor) -> Tensor:
        made = self.second(F.relu(self.first(features))) + self.beside(features)
        if self._times > 1:
            return F.pixel_shuffle(made, self._times)
        return made if made.shape[2:] == self._size else F.interpolate(made, self._size, mode="nearest")


@final
class InverseRows(nn.Module):
    """The same for features that are no image (tokens, a vector): two linear layers over all of them."""

    def __init__(self, before: tuple[int, ...], after: tuple[int, ...], width: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = torch.Size(before).numel(), torch.Size(after).numel()
        self._after = after
        self.first = linear(sizes[0], 8 * width, generator)
        self.second = linear(8 * width, sizes[1], generator)
        self.beside = linear(sizes[0], sizes[1], generator)

    def forward(self, features: Tensor) -> Tensor:
        rows = features.flatten(1)
        return (self.second(F.relu(self.first(rows))) + self.beside(rows)).view(-1, *self._after)
