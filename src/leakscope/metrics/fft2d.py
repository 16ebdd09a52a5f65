"""Distance of Fourier magnitudes."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.metrics.base import as_pairs, metric

__all__ = ["fft2d"]


@metric("fft2d", higher_is_better=False)
def fft2d(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """One minus the cosine of the 2-D Fourier magnitudes of each image; 0 is perfect.

    (B, C, H, W) twice → (B,) float64: 1 − ⟨|F x̂|, |F x|⟩ / (‖F x̂‖ ‖F x‖) over all channels and frequencies, in [0, 1].
    Free of phase, so blind to a cyclic shift; with the phase kept it would be the cosine of the pixels (Parseval).
    Published uses of the name give no formula; this one is ours. The constant frequency weighs most, so images of
    similar brightness lie close together. Two black images are equal (0); black against anything else is 1.
    """
    left, right = (torch.fft.fft2(side).abs().flatten(1) for side in as_pairs(reconstruction, truth))
    dot = (left * right).sum(1)
    norms = left.norm(dim=1) * right.norm(dim=1)
    both_black = (left == 0).all(1) & (right == 0).all(1)
    either_black = (left == 0).all(1) | (right == 0).all(1)
    # norms is 0 only for a black side; NaN in the images stays NaN.
    cosine = torch.where(either_black, both_black.to(dot.dtype), dot / torch.where(either_black, 1.0, norms))
    return (1 - cosine).clamp(min=0)
