"""What an adapter works on: one module under the lens, and the few questions every family asks of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from leakscope.models.anatomy import Anatomy, Attention, Layer, PatchEmbedding, PositionEmbedding
from leakscope.models.probe import Probe

__all__ = ["Subject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module, the shape (C, H, W) of its images, what its forward passes showed and what is known already."""

    module: nn.Module
    shape: tuple[int, int, int]
    seen: Probe
    found: Anatomy

    def has(self, name: str) -> bool:
        """Whether there is a submodule, parameter or buffer of this name (``None`` counts as absent)."""
        parent, _, leaf = name.rpartition(".")
        try:
            return getattr(self.module.get_submodule(parent), leaf, None) is not None
        except AttributeError:
            return False

    def layer(self, name: str) -> Layer:
        """The names of the weight and bias of the submodule ``name``."""
        return Layer(weight=f"{name}.weight", bias=f"{name}.bias" if self.has(f"{name}.bias") else None, module=name)

    def children(self, name: str) -> tuple[str, ...]:
        """The full names of a submodule's children, in order; nothing if there is no such submodule."""
        if not self.has(name):
            return ()
        return tuple(f"{name}.{child}" for child, _ in self.module.get_submodule(name).named_children())

    def noted(self, anatomy: Anatomy, *notes: str) -> Anatomy:
        """The anatomy with more notes."""
        return replace(anatomy, notes=(*anatomy.notes, *notes))

    def patch_embedding(self, name: str, *, linear: bool) -> PatchEmbedding | None:
        """A convolution as a patch embedding; ``linear`` says that nothing follows it before the tokens.

        It is linear only if, besides, the pixels reach it untouched and its windows tile the whole image exactly.
        """
        conv = self.module.get_submodule(name)
        if not isinstance(conv, nn.Conv2d):
            return None
        kernel, stride = _pair(conv.kernel_size), _pair(conv.stride)
        pad = (0, 0) if isinstance(conv.padding, str) else _pair(conv.padding)
        _, height, width = self.shape
        tiles = kernel == stride and pad == (0, 0) and conv.padding != "same" and conv.groups == 1
        plain = tiles and _pair(conv.dilation) == (1, 1) and height % kernel[0] == 0 and width % kernel[1] == 0
        first = self.seen.first_layer == name and self.seen.sees_pixels
        grid = ((height + 2 * pad[0] - kernel[0]) // stride[0] + 1, (width + 2 * pad[1] - kernel[1]) // stride[1] + 1)
        named = self.layer(name)
        return PatchEmbedding(
            weight=named.weight,
            bias=named.bias,
            module=name,
            patch=kernel,
            grid=grid,
            linear=linear and plain and first,
        )

    def position_embedding(
        self, name: str, *, patches: int, prefix_tokens: int, norm_after: str | None = None
    ) -> PositionEmbedding | None:
        """The table of this name, (…, N, D), if it has one row per patch or per token (a resampled one has not)."""
        if not self.has(name):
            return None
        parent, _, leaf = name.rpartition(".")
        table: object = getattr(self.module.get_submodule(parent), leaf)
        if not isinstance(table, Tensor) or table.ndim < 2 or table.shape[-2] not in (patches, patches + prefix_tokens):
            return None
        return PositionEmbedding(
            name=name,
            learnable=isinstance(table, nn.Parameter) and table.requires_grad,
            prefix_in_table=table.shape[-2] - patches,
            prefix_tokens=prefix_tokens,
            norm_after=norm_after,
        )

    def attention(self, name: str, *, heads: int, norm: Layer | None, qkv: str = "qkv") -> Attention:
        """A self-attention with one fused linear layer for q, k and v."""
        fused = self.layer(f"{name}.{qkv}")
        return Attention(
            module=name,
            weights=(fused.weight,),
            biases=() if fused.bias is None else (fused.bias,),
            heads=heads,
            norm=norm,
        )

    def norm_feeding(self, name: str) -> Layer | None:
        """The norm whose output the module ``name`` took as it was, if any was seen to."""
        producer = self.seen.feeds.get(name)
        return self.layer(producer) if producer in self.found.norms and producer is not None else None


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
