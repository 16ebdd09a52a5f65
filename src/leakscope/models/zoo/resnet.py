"""Residual networks for small images: ResNet-18 (post- and pre-activation) and the CIFAR ResNets of He et al."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from leakscope.models.blueprint import CIFAR10, IMAGENET, model

__all__ = ["ResNet", "ResidualBlock", "resnet18", "resnet20", "resnet56"]


class ResidualBlock(nn.Module):
    """relu(BN(conv(relu(BN(conv x)))) + shortcut(x)), two 3×3 convolutions (He et al. 2016a).

    ``projected``: where the shape changes the shortcut is a strided 1×1 convolution with BatchNorm (option B), else it
    drops every other pixel and pads the new channels with zeros, half on each side (option A, no parameters).
    """

    def __init__(self, before: int, after: int, stride: int, *, projected: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu2 = nn.ReLU()
        self.downsample: nn.Module | None = None
        self.stride, self.pad = stride, after - before
        if projected and (stride != 1 or before != after):
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(y)) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """x in the shape of the block's output."""
        if self.downsample is not None:
            return self.downsample(x)
        if self.stride == 1 and self.pad == 0:
            return x
        half = self.pad // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.pad - half))


class ResNet(nn.Module):
    """3×3 stem without pooling, stages of residual blocks (each later one halves the image and doubles the width).

    Logits (B, K) of (B, C, H, W). Convolutions start as He normal (fan out).
    """

    def __init__(
        self, *, depths: tuple[int, ...], width: int, projected: bool, num_classes: int, channels: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        before = width
        self.stages = tuple(f"layer{i + 1}" for i in range(len(depths)))
        for i, (stage, depth) in enumerate(zip(self.stages, depths, strict=True)):
            after = width * 2**i
            blocks: OrderedDict[str, nn.Module] = OrderedDict()
            for j in range(depth):
                blocks[str(j)] = ResidualBlock(before, after, 2 if i > 0 and j == 0 else 1, projected=projected)
                before = after
            self.add_module(stage, nn.Sequential(blocks))
        self.linear = nn.Linear(before, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return self.linear(x.mean((2, 3)))


@model("resnet18", cites="he2016", normalisation=CIFAR10)
def resnet18(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ResNet-18 for 32 px images: 3×3 stem, no pooling, widths 64–512, post-activation.

    Any image size works. The order of parameters and buffers is that of the common CIFAR variants.
    """
    del image_size  # pooled over whatever is left
    return ResNet(depths=(2, 2, 2, 2), width=64, projected=True, num_classes=num_classes, channels=channels)


@model("resnet20", cites="he2016", normalisation=IMAGENET)
def resnet20(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ResNet-20 for CIFAR (He et al. §4.2): three stages of three blocks, widths 16–64, parameter-free shortcuts."""
    del image_size  # pooled over whatever is left
    return ResNet(depths=(3, 3, 3), width=16, projected=False, num_classes=num_classes, channels=channels)


@model("resnet56", cites="he2016", normalisation=IMAGENET)
def resnet56(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ResNet-56 for CIFAR (He et al. §4.2): three stages of nine blocks, widths 16–64, parameter-free shortcuts."""
    del image_size  # pooled over whatever is left
    return ResNet(depths=(9, 9, 9), width=16, projected=False, num_classes=num_classes, channels=channels)
