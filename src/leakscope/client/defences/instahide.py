"""InstaHide: blends of several images with the sign of each pixel flipped at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from leakscope.client.defences._mixing import mixed
from leakscope.client.defences._parts import whole
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting

__all__ = ["InstaHide"]

_MOST = 0.65


@final
@register_defence("instahide", cites="huang2020")
@dataclass(frozen=True, slots=True, kw_only=True)
class InstaHide(Defence):
    """Trains on blends of ``mix`` images with random weights, the sign of every normalised pixel flipped at random.

    No image has a weight above 0.65, as published. What a server gets back at best is the blend without its signs.
    """

    same_images: ClassVar[bool] = False

    mix: int = 4

    def __post_init__(self) -> None:
        whole("mix", self.mix, low=2)

    def prepare(self, setting: Setting, *, generator: torch.Generator) -> Setting:
        weights = torch.rand((len(setting.images), self.mix), generator=generator).clamp_min(1e-6)
        weights = weights / weights.sum(1, keepdim=True)
        weights = weights.sort(dim=1, descending=True).values  # the private image weighs most
        excess = (weights[:, :1] - _MOST).clamp_min(0)
        weights = torch.cat([weights[:, :1] - excess, weights[:, 1:] + excess / (self.mix - 1)], dim=1)
        blend = mixed(setting, weights, self.name, generator)
        flips = 1 - 2 * torch.randint(2, blend.images.shape, generator=generator).to(blend.images)
        pixels = setting.model.denormalise(flips * setting.model.normalise(blend.images))
        return replace(blend, images=pixels)
