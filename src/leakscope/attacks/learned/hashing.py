"""Feature hashing: long vectors summed into fewer bins, so that an inverter of a large model stays small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from leakscope.errors import BadInput

__all__ = ["Hash"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hash:
    """(…, ``size``) ↦ (…, ``bins``): every coordinate goes to one bin, drawn once from ``seed``; a bin is their sum.

    Plain sums, as Learning to Invert takes them (Wu et al. 2023); ``signed`` draws a sign for each coordinate as well,
    which keeps inner products in the mean (Weinberger et al. 2009). Linear either way, and the identity where there
    are at least as many bins as coordinates.
    """

    size: int
    bins: int
    signed: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.bins < 1:
            raise BadInput(f"{self.size} values cannot be hashed into {self.bins} bins: at least 1 of each is needed.")

    @property
    def width(self) -> int:
        """How many numbers come out."""
        return min(self.size, self.bins)

    def __call__(self, values: Tensor) -> Tensor:
        if values.shape[-1] != self.size:
            raise BadInput(f"This hash takes {self.size} values; got {values.shape[-1]}.")
        if self.size <= self.bins:
            return values
        draw = torch.Generator().manual_seed(self.seed)
        bins = torch.randint(self.bins, (self.size,), generator=draw).to(values.device)
        if self.signed:
            signs = torch.randint(2, (self.size,), generator=draw).to(values) * 2 - 1
            values = values * signs
        return values.new_zeros((*values.shape[:-1], self.bins)).index_add_(-1, bins, values)
