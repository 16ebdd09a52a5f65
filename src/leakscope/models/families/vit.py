"""Vision transformers of timm (ViT, DeiT, distilled or with registers) and torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from torch import nn

from leakscope.models.anatomy import Anatomy, Attention, Classifier
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["timm_distilled", "timm_vit", "torchvision_vit"]


@family("timm.models.vision_transformer.VisionTransformer")
def timm_vit(subject: Subject) -> Anatomy:
    """timm's ViT and DeiT: fused qkv, class and register tokens as parameters, one position table or none."""
    module = subject.module
    notes: list[str] = []
    linear = isinstance(getattr(module.get_submodule("patch_embed"), "norm", None), nn.Identity)
    patch = subject.patch_embedding("patch_embed.proj", linear=linear) if subject.has("patch_embed.proj") else None
    tokens = tuple(t for t in ("cls_token", "dist_token", "reg_token") if subject.has(t))
    prefix = int(cast("int", module.num_prefix_tokens))
    pre = "norm_pre" if "norm_pre" in subject.found.norms else None
    position = None
    if patch is not None:
        count = patch.grid[0] * patch.grid[1]
        position = subject.position_embedding("pos_embed", patches=count, prefix_tokens=prefix, norm_after=pre)
    if position is None:
        notes.append("It has no absolute position table with one row per token.")
    if "patch_drop" in subject.found.stochastic:
        notes.append("In train mode it drops patches at random (patch_drop).")
    blocks = subject.children("blocks")
    attention = _timm_attention(subject, blocks)
    if attention is None:
        notes.append("The first block is not of the usual kind, so its attention is not described.")
    config = cast("Mapping[str, object]", getattr(module, "pretrained_cfg", {}))
    deit = str(config.get("architecture", "")).startswith("deit") or "dist_token" in tokens
    anatomy = replace(
        subject.found,
        family="deit" if deit else "vit",
        patch_embedding=patch,
        position_embedding=position,
        prefix_tokens=tokens,
        first_attention=attention,
        blocks=blocks,
    )
    return subject.noted(anatomy, *notes)


@family("timm.models.deit.VisionTransformerDistilled")
def timm_distilled(subject: Subject) -> Anatomy:
    """A distilled DeiT: two heads, whose mean is the answer: logits = ½(W a + b) + ½(W' a' + b')."""
    anatomy = timm_vit(subject)
    head = subject.layer("head")
    classifier = Classifier(weight=head.weight, bias=head.bias, module="head", scale=0.5, others=("head_dist",))
    # The generic search found no single layer whose output is the logits; here that is explained.
    kept = tuple(n for n in anatomy.notes if "so the classifier is not known" not in n)
    return subject.noted(
        replace(anatomy, classifier=classifier, notes=kept),
        "Its logits are the mean of two heads, 'head' and 'head_dist', on two different tokens.",
    )


@family("torchvision.models.vision_transformer.VisionTransformer")
def torchvision_vit(subject: Subject) -> Anatomy:
    """torchvision's ViT: one in-projection for q, k, v, a class token, a position table in the encoder."""
    patch = subject.patch_embedding("conv_proj", linear=True)
    blocks = subject.children("encoder.layers")
    position = attention = None
    notes: list[str] = []
    if patch is not None:
        count = patch.grid[0] * patch.grid[1]
        position = subject.position_embedding("encoder.pos_embedding", patches=count, prefix_tokens=1)
    else:
        notes.append("A convolutional stem stands between pixels and tokens, so there is no patch embedding.")
    name = f"{blocks[0]}.self_attention"
    inner = subject.module.get_submodule(name)
    if isinstance(inner, nn.MultiheadAttention):
        bias = (f"{name}.in_proj_bias",) if subject.has(f"{name}.in_proj_bias") else ()
        norm = subject.norm_feeding(name)
        weights = (f"{name}.in_proj_weight",)
        attention = Attention(module=name, weights=weights, biases=bias, heads=inner.num_heads, norm=norm)
    anatomy = replace(
        subject.found,
        family="vit",
        patch_embedding=patch,
        position_embedding=position,
        prefix_tokens=("class_token",),
        first_attention=attention,
        blocks=blocks,
    )
    return subject.noted(anatomy, *notes)


def _timm_attention(subject: Subject, blocks: tuple[str, ...]) -> Attention | None:
    name = f"{blocks[0]}.attn" if blocks else ""
    if not name or not subject.has(f"{name}.qkv"):
        return None
    heads = int(cast("int", subject.module.get_submodule(name).num_heads))
    return subject.attention(name, heads=heads, norm=subject.norm_feeding(f"{name}.qkv"))
