"""A larger batch: each image's gradient is averaged with more of its kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from leakscope.client.defences._others import drawn_others
from leakscope.client.defences._parts import whole
from leakscope.client.registry import register_defence
from leakscope.types import Defence, Setting

__all__ = ["LargerBatch"]


@final
@register_defence("larger-batch", cites="mcmahan2017")
@dataclass(frozen=True, slots=True, kw_only=True)
class LargerBatch(Defence):
    """Trains on ``size`` images at once: the private batch first, then other images of the client."""

    same_images: ClassVar[bool] = False

    size: int = 8

    def __post_init__(self) -> None:
        whole("size", self.size)

    def prepare(self, setting: Setting, *, generator: torch.Generator) -> Setting:
        missing = self.size - len(setting.images)
        if missing <= 0:
            return setting
        images, labels = drawn_others(setting, missing, self.name, generator)
        return replace(setting, images=torch.cat([setting.images, images]), labels=torch.cat([setting.labels, labels]))
