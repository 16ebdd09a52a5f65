"""The sigmoid LeNet that gradient inversion began on.

Smooth everywhere (sigmoids, strides in place of pooling), with weights spread widely enough that no unit saturates or
vanishes: second derivatives exist and carry information, which L-BFGS attacks need.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from leakscope.models.blueprint import model

__all__ = ["LeNet", "lenet_dlg", "lenet_lti"]

_WIDTH = 12
_SPREAD = 0.5


class LeNet(nn.Sequential):
    """Three 5×5 convolutions C → 12 → 12 → 12 with strides 2, 2, 1 and sigmoids, then one linear layer.

    Logits (B, K) of images (B, C, H, W). Every weight and bias is drawn from U(−½, ½).
    """

    def __init__(self, *, num_classes: int, image_size: int, channels: int) -> None:
        side = (image_size + 3) // 4  # two strides of 2 with padding 2, each rounding up
        super().__init__(
            OrderedDict(
                conv1=nn.Conv2d(channels, _WIDTH, 5, stride=2, padding=2),
                act1=nn.Sigmoid(),
                conv2=nn.Conv2d(_WIDTH, _WIDTH, 5, stride=2, padding=2),
                act2=nn.Sigmoid(),
                conv3=nn.Conv2d(_WIDTH, _WIDTH, 5, stride=1, padding=2),
                act3=nn.Sigmoid(),
                flatten=nn.Flatten(),
                fc=nn.Linear(_WIDTH * side * side, num_classes),
            )
        )
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -_SPREAD, _SPREAD)


@model("lenet-dlg", cites="zhu2019")
def lenet_dlg(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """Sigmoid LeNet of Deep Leakage from Gradients: three 5×5 convolutions, weights and biases U(−½, ½).

    The structure of the paper's public code: strides 2, 2, 1, no pooling, fc 768 → K at 32 px.
    """
    return LeNet(num_classes=num_classes, image_size=image_size, channels=channels)


@model("lenet-lti", cites="wu2023")
def lenet_lti(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """Sigmoid LeNet of Learning to Invert: the same network as lenet-dlg, under the name its results are quoted by.

    Convolutions 3 → 12 → 12 → 12, kernel 5, strides 2, 2, 1, fc 768 → 10 at 32 px, weights U(−½, ½).
    """
    return LeNet(num_classes=num_classes, image_size=image_size, channels=channels)
