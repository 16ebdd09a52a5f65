"""EfficientNet and its kin of timm (EfficientNet-Lite, MobileNetV2, MNASNet, …): one class, built from stages."""

from __future__ import annotations

from dataclasses import replace

from leakscope.models.anatomy import Anatomy
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["timm_efficientnet"]


@family("timm.models.efficientnet.EfficientNet")
def timm_efficientnet(subject: Subject) -> Anatomy:
    """A stem, then stages ``blocks.i`` of blocks ``blocks.i.j``."""
    blocks = tuple(b for stage in subject.children("blocks") for b in subject.children(stage))
    return replace(subject.found, family="efficientnet", blocks=blocks)
