"""Image filters."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["median_filter"]


def median_filter(images: Tensor) -> Tensor:
    """Each pixel of (B, C, H, W) becomes the median of its 3×3 neighbourhood in its channel, reflected at the edges."""
    height, width = images.shape[-2:]
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect" if min(height, width) > 1 else "replicate")
    windows = padded.unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2)  # (B, C, H, W, 9)
    return windows.median(dim=-1).values
