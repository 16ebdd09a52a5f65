"""Swin transformers (v1, v2) of timm and torchvision: windows, relative positions, no absolute position table."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from torch import nn

from leakscope.models.anatomy import Anatomy, Attention
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["timm_swin", "torchvision_swin"]

_RELATIVE = "Positions enter as relative biases inside the attention windows: there is no absolute position table."


@family(
    "timm.models.swin_transformer.SwinTransformer",
    "timm.models.swin_transformer_v2.SwinTransformerV2",
)
def timm_swin(subject: Subject) -> Anatomy:
    """timm's Swin: ``layers.i.blocks.j``; version 2 normalises after its attention, version 1 before."""
    blocks = tuple(b for stage in subject.children("layers") for b in subject.children(f"{stage}.blocks"))
    post_norm = "V2" in type(subject.module.get_submodule(blocks[0])).__name__
    return _swin(subject, "patch_embed.proj", "patch_embed.norm", blocks, post_norm=post_norm)


@family("torchvision.models.swin_transformer.SwinTransformer")
def torchvision_swin(subject: Subject) -> Anatomy:
    """torchvision's Swin: ``features.1``, ``features.3``, … hold the blocks, merging layers stand between them."""
    stages = [s for s in subject.children("features")[1:] if isinstance(subject.module.get_submodule(s), nn.Sequential)]
    blocks = tuple(b for stage in stages for b in subject.children(stage))
    post_norm = "V2" in type(subject.module.get_submodule(blocks[0])).__name__
    return _swin(subject, "features.0.0", "features.0.2", blocks, post_norm=post_norm)


def _swin(subject: Subject, conv: str, norm: str, blocks: tuple[str, ...], *, post_norm: bool) -> Anatomy:
    name = f"{blocks[0]}.attn"
    before = None if post_norm else subject.layer(f"{blocks[0]}.norm1")
    heads = int(cast("int", subject.module.get_submodule(name).num_heads))
    attention = subject.attention(name, heads=heads, norm=before)
    separate = (f"{name}.q_bias", f"{name}.v_bias")
    if all(subject.has(b) for b in separate):
        attention = Attention(module=name, weights=attention.weights, biases=separate, heads=heads, norm=before)
    anatomy = replace(
        subject.found,
        family="swin",
        patch_embedding=subject.patch_embedding(conv, linear=norm not in subject.found.norms),
        first_attention=attention,
        blocks=blocks,
    )
    return subject.noted(anatomy, _RELATIVE)
