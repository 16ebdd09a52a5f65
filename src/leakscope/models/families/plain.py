"""Our own plain networks: sigmoid LeNet, ConvNet-64, MLPs. They have no blocks beyond their layers."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from leakscope.models.anatomy import Anatomy
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["convnet", "lenet", "mlp"]


@family("leakscope.models.zoo.lenet.LeNet")
def lenet(subject: Subject) -> Anatomy:
    """Each convolution is a block."""
    return replace(subject.found, family="lenet", blocks=_layers(subject))


@family("leakscope.models.zoo.convnet.ConvNet")
def convnet(subject: Subject) -> Anatomy:
    """Each convolution is a block."""
    return replace(subject.found, family="convnet", blocks=_layers(subject))


@family("leakscope.models.zoo.mlp.MLP")
def mlp(subject: Subject) -> Anatomy:
    """Each hidden linear layer is a block."""
    return replace(subject.found, family="mlp", blocks=_layers(subject))


def _layers(subject: Subject) -> tuple[str, ...]:
    head = subject.seen.classifier
    return tuple(n for n, m in subject.module.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear)) and n != head)
