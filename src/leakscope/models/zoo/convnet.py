"""ConvNet-64, the plain convolutional network of Inverting Gradients."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from leakscope.errors import BadInput
from leakscope.models.blueprint import CIFAR10, model

__all__ = ["ConvNet", "convnet64"]

_WIDTHS = (1, 2, 2, 4, 4, 4, 4, 4)
_POOL_AFTER = (5, 7)
_POOL = 3


class ConvNet(nn.Sequential):
    """Eight 3×3 convolutions with BatchNorm and ReLU, 3×3 max-pooling after the sixth and the eighth, one linear layer.

    With base width w the convolutions give w, 2w, 2w, 4w, 4w, 4w, 4w, 4w channels. Logits (B, K) of (B, C, H, W).
    Parameters and buffers come in the order of the published network, so that states can be carried over in order.
    """

    def __init__(self, *, width: int, num_classes: int, image_size: int, channels: int) -> None:
        side = image_size // _POOL // _POOL
        if side < 1:
            raise BadInput(f"ConvNet pools by 9, so images need at least 9 px; got image_size={image_size}.")
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        before = channels
        for i, factor in enumerate(_WIDTHS):
            after = factor * width
            layers[f"conv{i}"] = nn.Conv2d(before, after, 3, padding=1)
            layers[f"bn{i}"] = nn.BatchNorm2d(after)
            layers[f"relu{i}"] = nn.ReLU()
            if i in _POOL_AFTER:
                layers[f"pool{_POOL_AFTER.index(i)}"] = nn.MaxPool2d(_POOL)
            before = after
        layers["flatten"] = nn.Flatten()
        layers["linear"] = nn.Linear(before * side * side, num_classes)
        super().__init__(layers)


@model("convnet64", cites="geiping2020", normalisation=CIFAR10)
def convnet64(*, num_classes: int, image_size: int, channels: int, width: int = 64) -> nn.Module:
    """ConvNet-64 of Inverting Gradients: eight 3×3 convolutions, BatchNorm, ReLU, two max-pools; 2.9 M weights."""
    return ConvNet(width=width, num_classes=num_classes, image_size=image_size, channels=channels)
