"""Mean squared error."""

from __future__ import annotations

from torch import Tensor

from leakscope.metrics.base import as_pairs, metric

__all__ = ["mse"]


@metric("mse", higher_is_better=False)
def mse(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error over the pixels of each image; 0 is perfect.

    (B, C, H, W) twice → (B,) float64: mean over C, H, W of (x̂ − x)².
    """
    left, right = as_pairs(reconstruction, truth)
    return (left - right).square().flatten(1).mean(1)
