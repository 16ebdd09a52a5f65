"""The two vision transformers of APRIL (our own :mod:`leakscope.models.zoo.april`)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from leakscope.models.anatomy import Anatomy
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["april"]


@family("leakscope.models.zoo.april.AprilViT")
def april(subject: Subject) -> Anatomy:
    """Fused qkv without bias, a learnable position table that includes the class token."""
    patch = subject.patch_embedding("patch_embed", linear=True)
    count = 0 if patch is None else patch.grid[0] * patch.grid[1]
    blocks = subject.children("blocks")
    name = f"{blocks[0]}.attention"
    heads = int(cast("int", subject.module.get_submodule(name).heads))
    return replace(
        subject.found,
        family="april-vit",
        patch_embedding=patch,
        position_embedding=subject.position_embedding("pos_embed", patches=count, prefix_tokens=1),
        prefix_tokens=("cls_token",),
        first_attention=subject.attention(name, heads=heads, norm=subject.norm_feeding(f"{name}.qkv")),
        blocks=blocks,
    )
