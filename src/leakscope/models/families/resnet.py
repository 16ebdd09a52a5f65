"""Residual networks of timm, torchvision and our own: their blocks in order."""

from __future__ import annotations

from dataclasses import replace

from leakscope.models.anatomy import Anatomy
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["resnet", "resnetv2"]


@family(
    "timm.models.resnet.ResNet",
    "torchvision.models.resnet.ResNet",
    "leakscope.models.zoo.resnet.ResNet",
    "leakscope.models.zoo.preact.PreActResNet",
)
def resnet(subject: Subject) -> Anatomy:
    """Stages ``layer1``, ``layer2``, … of residual blocks."""
    stages = [name for name, _ in subject.module.named_children() if name.startswith("layer")]
    return replace(subject.found, family="resnet", blocks=tuple(b for s in stages for b in subject.children(s)))


@family("timm.models.resnetv2.ResNetV2")
def resnetv2(subject: Subject) -> Anatomy:
    """Stages ``stages.0``, ``stages.1``, … with their residual blocks in ``blocks``."""
    stages = subject.children("stages")
    blocks = tuple(b for s in stages for b in subject.children(f"{s}.blocks"))
    return replace(subject.found, family="resnet", blocks=blocks)
