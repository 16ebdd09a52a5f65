"""YOLOv8-nano for object detection, and the feasibility study's two simplified variants of it.

Written from the published structure (Jocher et al. 2023): modules stand under the reference's numbers, ``model.0`` to
``model.22``, with its names below, so that a state dict of the reference fits (docs/feasibility.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.errors import BadInput
from leakscope.models.blueprint import model
from leakscope.models.detection.loss import DetectionLoss
from leakscope.models.zoo.preact import PreActBlock
from leakscope.models.zoo.resnet import ResidualBlock

__all__ = ["Yolo", "yolov8n", "yolov8n_basic", "yolov8n_preact"]

_BINS: Final = 16
_TAKES: Final = {11: (10, 6), 14: (13, 4), 17: (16, 12), 20: (19, 9), 22: (15, 18, 21)}
"""Modules that take other outputs than that of the one before."""

Stage = Callable[[int, int, int, bool], nn.Module]
"""(channels before, after, repeats, with shortcut) -> what stands where the unmodified network has a C2f."""


class ConvUnit(nn.Module):
    """SiLU(BN(conv x)), a convolution that keeps or halves the size."""

    def __init__(self, before: int, after: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """Two 3×3 units, with or without a shortcut around them."""

    def __init__(self, width: int, *, shortcut: bool) -> None:
        super().__init__()
        self.cv1 = ConvUnit(width, width, 3)
        self.cv2 = ConvUnit(width, width, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    """A cross-stage partial stage: half the channels pass through bottlenecks, each of whose outputs is kept."""

    def __init__(self, before: int, after: int, repeats: int, shortcut: bool) -> None:
        super().__init__()
        half = after // 2
        self.cv1 = ConvUnit(before, after)
        self.cv2 = ConvUnit((2 + repeats) * half, after)
        self.m = nn.ModuleList(Bottleneck(half, shortcut=shortcut) for _ in range(repeats))

    def forward(self, x: Tensor) -> Tensor:
        kept = list(self.cv1(x).chunk(2, dim=1))
        for bottleneck in self.m:
            kept.append(bottleneck(kept[-1]))
        return self.cv2(torch.cat(kept, dim=1))


class SPPF(nn.Module):
    """Spatial pyramid pooling: the largest of 5, 9 and 13 px around each place, by one pool used three times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cv1 = ConvUnit(width, width // 2)
        self.cv2 = ConvUnit(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.cv1(x)]
        for _ in range(3):
            kept.append(F.max_pool2d(kept[-1], 5, stride=1, padding=2))
        return self.cv2(torch.cat(kept, dim=1))


class Join(nn.Module):
    """Channels of two maps side by side."""

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return torch.cat([x, other], dim=1)


class Expected(nn.Module):
    """The expectation over bins, as a frozen 1×1 convolution 0, 1, …: it is in the reference's state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(_BINS, 1, 1, bias=False).requires_grad_(False)
        self.conv.weight.copy_(torch.arange(_BINS).view(1, -1, 1, 1))


class Detect(nn.Module):
    """The decoupled head: on each of three maps, distributions of box sides (``cv2``) and class logits (``cv3``)."""

    def __init__(self, widths: tuple[int, ...], strides: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        box, kind = max(16, widths[0] // 4, 4 * _BINS), max(widths[0], min(num_classes, 100))
        self.cv2 = nn.ModuleList(_branch(width, box, 4 * _BINS) for width in widths)
        self.cv3 = nn.ModuleList(_branch(width, kind, num_classes) for width in widths)
        self.dfl = Expected()
        for sides, kinds, stride in zip(self.cv2, self.cv3, strides, strict=True):
            nn.init.ones_(_last_bias(sides))
            # About five objects in an image of 640 px: untrained, every class starts out rare.
            nn.init.constant_(_last_bias(kinds), math.log(5 / num_classes / (640 / stride) ** 2))

    def forward(self, *maps: Tensor) -> Tensor:
        heads = zip(self.cv2, self.cv3, maps, strict=True)
        return torch.cat([torch.cat([box(x), kind(x)], dim=1).flatten(2) for box, kind, x in heads], dim=2)


class Yolo(nn.Module):
    """Backbone, a neck that goes up and down again, and the head: (B, 4·16 + K, A) for images (B, C, H, W)."""

    def __init__(self, *, stem: tuple[nn.Module, nn.Module], stage: Stage, num_classes: int, image_size: int) -> None:
        super().__init__()
        if image_size % 32:
            raise BadInput(f"YOLOv8 takes images whose side is a multiple of 32 px; got {image_size}.")
        self.loss = DetectionLoss(image_size=image_size, num_classes=num_classes, bins=_BINS)
        self.model = nn.ModuleList(
            [
                *stem,
                stage(32, 32, 1, True),
                ConvUnit(32, 64, 3, 2),
                stage(64, 64, 2, True),
                ConvUnit(64, 128, 3, 2),
                stage(128, 128, 2, True),
                ConvUnit(128, 256, 3, 2),
                stage(256, 256, 1, True),
                SPPF(256),
                nn.Upsample(scale_factor=2),
                Join(),
                stage(384, 128, 1, False),
                nn.Upsample(scale_factor=2),
                Join(),
                stage(192, 64, 1, False),
                ConvUnit(64, 64, 3, 2),
                Join(),
                stage(192, 128, 1, False),
                ConvUnit(128, 128, 3, 2),
                Join(),
                stage(384, 256, 1, False),
                Detect((64, 128, 256), self.loss.strides, num_classes),
            ]
        )
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eps, m.momentum = 1e-3, 0.03

    def forward(self, x: Tensor) -> Tensor:
        given: list[Tensor] = []
        for number, module in enumerate(self.model):
            x = module(*(given[i] for i in _TAKES[number])) if number in _TAKES else module(x)
            given.append(x)
        return x

    def detection_loss(self, outputs: Tensor, boxes: Tensor) -> Tensor:
        """CIoU, distribution focal and class loss under the task-aligned assignment."""
        return self.loss(outputs, boxes)


@model("yolov8n", cites="jocher2023", image_size=256, num_classes=80)
def yolov8n(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """YOLOv8-nano, unmodified: an object detector with its training loss. 3.16 M parameters at 80 classes.

    Labels are boxes; images are letterboxed. Any side that is a multiple of 32 px.
    """
    return Yolo(stem=_stem(channels), stage=C2f, num_classes=num_classes, image_size=image_size)


@model("yolov8n-preact", cites="valadi2025", image_size=256, num_classes=80)
def yolov8n_preact(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """YOLOv8-nano with a pre-activation residual block in place of every C2f (Valadi et al. 2025, §5.4).

    One block for each stage is our reading: the study says "simpler residual blocks, reducing architectural depth".
    """

    def stage(before: int, after: int, repeats: int, shortcut: bool) -> nn.Module:
        del repeats, shortcut  # one block, and its shortcut is what it is about
        return PreActBlock(before, after, 1)

    return Yolo(stem=_stem(channels), stage=stage, num_classes=num_classes, image_size=image_size)


@model("yolov8n-basic", cites="valadi2025", image_size=256, num_classes=80)
def yolov8n_basic(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """YOLOv8-nano with ResNet's BasicBlock for every C2f, and its stem: 7×7 of stride 2, then a max-pool.

    The study attacks it in inference mode (Valadi et al. 2025, §5.4).
    """

    def stage(before: int, after: int, repeats: int, shortcut: bool) -> nn.Module:
        del repeats, shortcut  # one block, and its shortcut is what it is about
        return ResidualBlock(before, after, 1, projected=True)

    first = nn.Sequential(nn.Conv2d(channels, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    stem = (first, nn.MaxPool2d(3, stride=2, padding=1))
    return Yolo(stem=stem, stage=stage, num_classes=num_classes, image_size=image_size)


def _stem(channels: int) -> tuple[nn.Module, nn.Module]:
    return ConvUnit(channels, 16, 3, 2), ConvUnit(16, 32, 3, 2)


def _branch(before: int, width: int, after: int) -> nn.Sequential:
    return nn.Sequential(ConvUnit(before, width, 3), ConvUnit(width, width, 3), nn.Conv2d(width, after, 1))


def _last_bias(branch: nn.Module) -> Tensor:
    return cast("Tensor", cast("nn.Sequential", branch)[-1].bias)
