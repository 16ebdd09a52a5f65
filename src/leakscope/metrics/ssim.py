"""Structural similarity (Wang, Bovik, Sheikh and Simoncelli 2004)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.metrics.base import ImageShape, as_pairs, by_image, image_shape, metric, nan_scores

__all__ = ["WINDOW", "similarity_maps", "ssim"]

WINDOW = 11
"""Side of the Gaussian window in pixels."""
_SIGMA = 1.5
_C1 = 0.01**2
_C2 = 0.03**2


def similarity_maps(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The full index and its contrast-structure part, (N, C, H − 10, W − 10) each, wherever the window fits.

    With Gaussian-weighted means μ, variances σ² and covariance σ_xy:
    cs = (2σ_xy + C₂) / (σ_x² + σ_y² + C₂) and ssim = cs · (2μ_xμ_y + C₁) / (μ_x² + μ_y² + C₁).
    """
    mean_left, mean_right = _blur(left), _blur(right)
    variance_left = _blur(left * left) - mean_left.square()
    variance_right = _blur(right * right) - mean_right.square()
    covariance = _blur(left * right) - mean_left * mean_right
    contrast = (2 * covariance + _C2) / (variance_left + variance_right + _C2)
    luminance = (2 * mean_left * mean_right + _C1) / (mean_left.square() + mean_right.square() + _C1)
    return luminance * contrast, contrast


def _blur(images: Tensor) -> Tensor:
    """The Gaussian-weighted local mean of each channel, (N, C, H, W) → (N, C, H − 10, W − 10)."""
    offsets = torch.arange(WINDOW, dtype=images.dtype, device=images.device) - WINDOW // 2
    taps = torch.exp(-0.5 * (offsets / _SIGMA).square())
    taps = taps / taps.sum()
    planes = images.flatten(0, 1).unsqueeze(1)  # (N·C, 1, H, W)
    planes = F.conv2d(F.conv2d(planes, taps.view(1, 1, WINDOW, 1)), taps.view(1, 1, 1, WINDOW))
    return planes.view(images.shape[:2] + planes.shape[-2:])


def _undefined(shape: ImageShape) -> str | None:
    height, width = shape[1:]
    if min(height, width) >= WINDOW:
        return None
    return f"needs images of at least {WINDOW} × {WINDOW} px, the size of its window; these are {height} × {width}"


@metric("ssim", higher_is_better=True, cites="wang2004", undefined=_undefined)
def ssim(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Structural similarity of each image, 11 × 11 Gaussian window; 1 is perfect.

    (B, C, H, W) twice → (B,) float64: the mean over channels and over every place where the window fits, with
    σ = 1.5, K₁ = 0.01, K₂ = 0.03 and a data range of 1. NaN for images below 11 px, where no window fits.
    """
    left, right = as_pairs(reconstruction, truth)
    if _undefined(image_shape(left)):
        return nan_scores(left)
    return by_image(lambda x, y: similarity_maps(x, y)[0].mean(), left, right)
