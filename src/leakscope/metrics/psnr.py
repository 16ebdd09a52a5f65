"""Peak signal-to-noise ratio."""

from __future__ import annotations

from torch import Tensor

from leakscope.metrics.base import metric
from leakscope.metrics.mse import mse

__all__ = ["psnr"]


@metric("psnr", higher_is_better=True)
def psnr(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in decibels, for pixels in [0, 1].

    (B, C, H, W) twice → (B,) float64: −10 log₁₀ MSE. Infinite for exactly equal images and for no others: errors are
    computed in float64, where a closed-form attack reaches some 260 dB.
    """
    return -10.0 * mse(reconstruction, truth).log10()
