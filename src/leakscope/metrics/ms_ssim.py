"""Multi-scale structural similarity (Wang, Simoncelli and Bovik 2003)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.metrics.base import ImageShape, as_pairs, by_image, image_shape, metric, nan_scores
from leakscope.metrics.ssim import WINDOW, similarity_maps

__all__ = ["ms_ssim"]

_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
# The smallest side that, halved and rounded up four times, still holds the window.
_SMALLEST = (WINDOW - 1) * 2 ** (len(_WEIGHTS) - 1) + 1


def _undefined(shape: ImageShape) -> str | None:
    height, width = shape[1:]
    if min(height, width) >= _SMALLEST:
        return None
    return f"not defined below {_SMALLEST} px: five scales with an 11 px window; these images are {height} × {width}"


@metric("ms-ssim", higher_is_better=True, cites="wang2003", undefined=_undefined)
def ms_ssim(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Multi-scale structural similarity of each image over five scales; 1 is perfect.

    (B, C, H, W) twice → (B,) float64: per channel, the product over scales of the mean contrast-structure term (and of
    the full index at the coarsest) raised to Wang's weights, negative terms counting as 0; then the mean over channels.
    NaN for images below 161 px, where the window does not fit the coarsest scale.
    """
    left, right = as_pairs(reconstruction, truth)
    if _undefined(image_shape(left)):
        return nan_scores(left)
    return by_image(_one, left, right)


def _one(left: Tensor, right: Tensor) -> Tensor:
    """The score of one pair, (1, C, H, W) each."""
    product = torch.ones(left.shape[1], dtype=left.dtype)
    for scale, weight in enumerate(_WEIGHTS):
        if scale:
            left, right = _halve(left), _halve(right)
        full, contrast = similarity_maps(left, right)
        term = full if scale == len(_WEIGHTS) - 1 else contrast
        product = product * term.mean((0, 2, 3)).clamp(min=0) ** weight
    return product.mean()


def _halve(images: Tensor) -> Tensor:
    """Average 2 × 2 blocks; an odd last row or column is repeated, so that no pixel is dropped."""
    height, width = images.shape[-2:]
    return F.avg_pool2d(F.pad(images, (0, width % 2, 0, height % 2), mode="replicate"), 2)
