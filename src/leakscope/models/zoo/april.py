"""The two vision transformers of APRIL (Lu et al. 2022), for 28, 32 and 224 px.

Architecture A feeds the position-embedded tokens straight into self-attention: no norm before it, no residual around
it, so that ∂L/∂z of the attention's input equals ∂L/∂E_pos and the closed form applies. Architecture B is the usual
pre-norm ViT. Small images: 4×4 patches of the image, dim 384, 4 heads, depth 4; 224 px: 16 px patches, dim 768,
12 heads, depth 12. Attention is written out as softmax(QKᵀ/√d)V, so it can be differentiated twice.

What the paper leaves open, and the choice here: an MLP four times as wide with GELU, no norm before the classifier, a
patch embedding with bias. With these Architecture B has exactly the 7,123,210 parameters of the paper's Table 2 on
MNIST, and dropping one block's attention takes away 590,208, which is also the paper's figure. Initial weights are
torch's defaults; class token and position table are N(0, 0.02²), as in ViT.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.errors import BadInput
from leakscope.models.blueprint import CIFAR10, IDENTITY, INCEPTION, model

__all__ = ["AprilViT", "april_a", "april_b"]

_GRID = 4
_LARGE = 224


class SelfAttention(nn.Module):
    """Multi-head self-attention of tokens (B, N, D): qkv without bias, output projection with bias."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)  # each (B, h, N, d/h)
        weights = (q @ k.mT * (d // self.heads) ** -0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, d))


def _mlp(dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


class StackedBlock(nn.Module):
    """Architecture A: attention → norm → MLP, one after the other, without residuals."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(dim, heads)
        self.norm = nn.LayerNorm(dim)
        self.mlp = _mlp(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(self.attention(x)))


class ResidualBlock(nn.Module):
    """Architecture B: x + attention(norm x), then x + MLP(norm x)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = _mlp(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class AprilViT(nn.Module):
    """Patch embedding, class token, position table, blocks, a linear layer on the class token; logits (B, K)."""

    def __init__(
        self,
        block: type[nn.Module],
        *,
        num_classes: int,
        image_size: int,
        channels: int,
        dim: int = 0,
        depth: int = 0,
        position_std: float = 0.02,
    ) -> None:
        super().__init__()
        large = image_size >= _LARGE
        heads = 12 if large else 4
        dim, depth = dim or (768 if large else 384), depth or (12 if large else 4)
        if dim < 1 or depth < 1 or dim % heads:
            raise BadInput(f"dim must be a multiple of {heads} heads and depth at least 1; got {dim} and {depth}.")
        patch = 16 if large else image_size // _GRID
        if patch < 1 or image_size % patch:
            raise BadInput(f"image_size must be a multiple of {16 if large else _GRID}; got {image_size}.")
        tokens = (image_size // patch) ** 2
        self.patch_embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + tokens, dim))
        self.blocks = nn.Sequential(*(block(dim, heads) for _ in range(depth)))
        self.head = nn.Linear(dim, num_classes)
        for table in (self.cls_token, self.pos_embed):
            nn.init.normal_(table, std=position_std)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patch_embed(x).flatten(2).mT  # (B, P, D), patches row by row
        z = torch.cat((self.cls_token.expand(len(z), -1, -1), z), dim=1) + self.pos_embed
        return self.head(self.blocks(z)[:, 0])


@model("april-a", cites="lu2022", normalisation=CIFAR10)
def april_a(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ViT of APRIL, Architecture A, 32 px: the position embedding feeds attention directly; no residuals."""
    return AprilViT(StackedBlock, num_classes=num_classes, image_size=image_size, channels=channels)


@model("april-b", cites="lu2022", normalisation=CIFAR10)
def april_b(
    *,
    num_classes: int,
    image_size: int,
    channels: int,
    dim: int = 0,
    depth: int = 0,
    position_std: float = 0.02,
) -> nn.Module:
    """ViT of APRIL, Architecture B, 32 px: the usual pre-norm transformer, dim 384, 4 heads, depth 4.

    ``dim`` and ``depth`` make it smaller, for quick looks; 0 is the paper's. ``position_std`` is the deviation of the
    initial position table and class token, which the paper does not give: its Table 1 appears with 1, not with 0.02.
    """
    return AprilViT(
        ResidualBlock,
        num_classes=num_classes,
        image_size=image_size,
        channels=channels,
        dim=dim,
        depth=depth,
        position_std=position_std,
    )


@model("april-a-28", cites="lu2022", image_size=28, channels=1, normalisation=IDENTITY)
def april_a_28(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ViT of APRIL, Architecture A, for MNIST: 28 px, one channel, 7 px patches."""
    return april_a(num_classes=num_classes, image_size=image_size, channels=channels)


@model("april-b-28", cites="lu2022", image_size=28, channels=1, normalisation=IDENTITY)
def april_b_28(*, num_classes: int, image_size: int, channels: int, position_std: float = 0.02) -> nn.Module:
    """ViT of APRIL, Architecture B, for MNIST: 28 px, one channel, 7 px patches; 7,123,210 parameters."""
    return april_b(num_classes=num_classes, image_size=image_size, channels=channels, position_std=position_std)


@model("april-a-224", cites="lu2022", image_size=224, num_classes=1000, normalisation=INCEPTION)
def april_a_224(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ViT of APRIL, Architecture A, for ImageNet: 224 px, 16 px patches, dim 768, 12 heads, depth 12."""
    return april_a(num_classes=num_classes, image_size=image_size, channels=channels)


@model("april-b-224", cites="lu2022", image_size=224, num_classes=1000, normalisation=INCEPTION)
def april_b_224(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
    """ViT of APRIL, Architecture B, for ImageNet: 224 px, 16 px patches, dim 768, 12 heads, depth 12."""
    return april_b(num_classes=num_classes, image_size=image_size, channels=channels)
