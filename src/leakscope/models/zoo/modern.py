"""Modern architectures for 32 px images, as the feasibility study adapts them: finer tokens, depth and width kept.

Each is timm's own network with a stem, patch or window that suits small images (Valadi et al. 2025, §4.5.3): what was
made for 224 px would throw most of a 32 px picture away in its first layer. Sizes that the study does not state are
ours: patch 2 and window 4 for the Swins, patch 4 for ViT-B, window 2 for MaxViT.
"""

from __future__ import annotations

import importlib
from typing import cast

from torch import nn

from leakscope._torchvision_ops import ensure
from leakscope.errors import BadInput
from leakscope.models.blueprint import CIFAR10, model

__all__ = ["convnext_tiny", "maxvit_tiny", "swin_tiny", "swinv2_tiny", "vit_base"]


@model("swin-t-32", cites="valadi2025", normalisation=CIFAR10)
def swin_tiny(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """Swin-T for 32 px: patches of 2 px in place of 4, windows of 4 tokens in place of 7. 27.5 M parameters."""
    _check(image_size, 16)
    return _timm(
        "swin_tiny_patch4_window7_224",
        num_classes=num_classes,
        in_chans=channels,
        img_size=image_size,
        patch_size=2,
        window_size=4,
    )


@model("swinv2-t-32", cites="valadi2025", normalisation=CIFAR10)
def swinv2_tiny(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """SwinV2-T for 32 px: patches of 2 px in place of 4, windows of 4 tokens in place of 8. 27.6 M parameters."""
    _check(image_size, 16)
    return _timm(
        "swinv2_tiny_window8_256",
        num_classes=num_classes,
        in_chans=channels,
        img_size=image_size,
        patch_size=2,
        window_size=4,
    )


@model("convnext-t-32", cites="valadi2025", normalisation=CIFAR10)
def convnext_tiny(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ConvNeXt-T for 32 px: a 3×3 stem of stride 1 in place of 4×4 patches. 27.8 M parameters."""
    _check(image_size, 8)
    made = _timm("convnext_tiny", num_classes=num_classes, in_chans=channels, patch_size=1)
    # timm's stems are patches or have two strides: the 1×1 patch it makes for stride 1 becomes a 3×3 convolution.
    stem = cast("nn.Sequential", made.get_submodule("stem"))
    patch = cast("nn.Conv2d", stem[0])
    stem[0] = nn.Conv2d(channels, patch.out_channels, 3, padding=1)
    nn.init.trunc_normal_(cast("nn.Conv2d", stem[0]).weight, std=0.02)
    nn.init.zeros_(_bias(stem[0]))
    return made


@model("maxvit-t-32", cites="valadi2025", normalisation=CIFAR10)
def maxvit_tiny(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """MaxViT-T for 32 px: the stem keeps the resolution, windows and grids of 2 in place of 7. 30.4 M parameters."""
    _check(image_size, 32)
    # Behind a stem of stride 1 everything has the size that it would have for an image twice as large.
    made = _timm("maxvit_tiny_tf_224", num_classes=num_classes, in_chans=channels, img_size=2 * image_size)
    cast("nn.Conv2d", made.get_submodule("stem.conv1")).stride = (1, 1)
    return made


@model("vit-b-32", cites="valadi2025", normalisation=CIFAR10)
def vit_base(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ViT-B for 32 px: patches of 4 px in place of 16. 85 M parameters."""
    _check(image_size, 4)
    return _timm("vit_base_patch16_224", num_classes=num_classes, in_chans=channels, img_size=image_size, patch_size=4)


def _timm(name: str, **options: object) -> nn.Module:
    ensure()
    return cast("nn.Module", importlib.import_module("timm").create_model(name, pretrained=False, **options))


def _bias(layer: nn.Module) -> nn.Parameter:
    return cast("nn.Parameter", layer.bias)


def _check(image_size: int, multiple: int) -> None:
    if image_size % multiple:
        raise BadInput(f"This model takes images whose side is a multiple of {multiple} px; got {image_size}.")
