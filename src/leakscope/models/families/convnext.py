"""ConvNeXt of timm and torchvision: a patch stem followed by a norm, then stages of depthwise blocks."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from leakscope.models.anatomy import Anatomy
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["timm_convnext", "torchvision_convnext"]


@family("timm.models.convnext.ConvNeXt")
def timm_convnext(subject: Subject) -> Anatomy:
    """timm's ConvNeXt: ``stem.0``, ``stages.i.blocks.j``."""
    blocks = tuple(b for stage in subject.children("stages") for b in subject.children(f"{stage}.blocks"))
    return _convnext(subject, "stem.0", blocks)


@family("torchvision.models.convnext.ConvNeXt")
def torchvision_convnext(subject: Subject) -> Anatomy:
    """torchvision's ConvNeXt: ``features.0`` is the stem, odd entries hold blocks, even ones shrink the image."""
    groups = [subject.children(stage) for stage in subject.children("features")[1:]]
    blocks = tuple(b for group in groups for b in group if _is_block(subject.module.get_submodule(b)))
    return _convnext(subject, "features.0.0", blocks)


def _is_block(module: nn.Module) -> bool:
    return type(module).__name__ == "CNBlock"


def _convnext(subject: Subject, stem: str, blocks: tuple[str, ...]) -> Anatomy:
    # A norm follows the stem in every variant, so tokens are not linear in the pixels.
    patch = subject.patch_embedding(stem, linear=False)
    return replace(subject.found, family="convnext", patch_embedding=patch, blocks=blocks)
