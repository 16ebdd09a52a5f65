"""A vision transformer for faces, of the shape that GradViT attacks."""

from __future__ import annotations

import importlib
from typing import cast

from torch import nn

from leakscope._torchvision_ops import ensure
from leakscope.errors import BadInput
from leakscope.models.blueprint import INCEPTION, model

__all__ = ["face_vit"]


@model("face-vit", cites="zhong2021", image_size=112, num_classes=1000, normalisation=INCEPTION)
def face_vit(
    *, num_classes: int, image_size: int, channels: int, dim: int = 512, depth: int = 20, heads: int = 8
) -> nn.Module:
    """Face Transformer's shape at 112 px: patches of 8 px, dim 512, depth 20, 8 heads, MLP 2048. 63.8 M parameters.

    GradViT names the network (Zhong and Deng 2021) and no sizes; these are those of that paper's ViT-P8S8.
    Open, and ours: a class token and a plain linear classifier over ``num_classes`` identities with cross-entropy, in
    place of a margin loss; 1,000 identities by default; pre-norm blocks with GELU, as in timm. Weights are random
    unless a checkpoint is given. ``dim``, ``depth`` and ``heads`` make it smaller, for quick looks.
    """
    if image_size % 8 or dim % heads or depth < 1:
        raise BadInput(
            f"image_size must be a multiple of 8, dim one of heads, and depth at least 1; got {image_size}, {dim} with "
            f"{heads} heads, and {depth}."
        )
    ensure()
    vit = importlib.import_module("timm.models.vision_transformer").VisionTransformer
    made = vit(
        img_size=image_size,
        patch_size=8,
        in_chans=channels,
        num_classes=num_classes,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=4.0,
    )
    return cast("nn.Module", made)
