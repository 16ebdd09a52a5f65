"""MixUp: train on blends of two images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy
import torch

from leakscope.client.defences._mixing import mixed
from leakscope.client.defences._parts import finite
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting

__all__ = ["MixUp"]


@final
@register_defence("mixup", cites="mixup2018")
@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp(Defence):
    """Trains on λ x + (1 − λ) x' with labels mixed alike, λ ~ Beta(α, α), at least ½ for the image itself."""

    same_images: ClassVar[bool] = False

    alpha: float = 1.0

    def __post_init__(self) -> None:
        finite("alpha", self.alpha, strict=True)

    def prepare(self, setting: Setting, *, generator: torch.Generator) -> Setting:
        # torch draws no Beta from a generator of one's own; numpy does, from a seed out of it.
        seed = int(torch.randint(2**62, (), generator=generator))
        share = torch.from_numpy(numpy.random.default_rng(seed).beta(self.alpha, self.alpha, len(setting.images)))
        share = torch.maximum(share, 1 - share)
        return mixed(setting, torch.stack([share, 1 - share], dim=1), self.name, generator)
