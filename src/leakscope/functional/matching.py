"""Which reconstruction belongs to which original.

A gradient does not say in which order the images of a batch were summed, so an attack returns them in any order.
Before anything is scored, reconstructions are paired with originals once, by the assignment of least total error.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakscope.errors import BadInput

__all__ = ["match", "pairwise_mse"]


def pairwise_mse(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """The mean squared error of every pair, (B, N) in float64: row i is original i, column j reconstruction j."""
    fewer = reconstruction.ndim == 0 or truth.ndim == 0 or len(reconstruction) < len(truth)
    if fewer or reconstruction.shape[1:] != truth.shape[1:] or truth.ndim < 2 or truth.numel() == 0:
        raise BadInput(
            "Matching needs at least as many reconstructions as originals, of one shape (B, …); got "
            f"{tuple(reconstruction.shape)} and {tuple(truth.shape)}."
        )
    rows = truth.detach().to("cpu", torch.float64).flatten(1)  # (B, D)
    columns = reconstruction.detach().to("cpu", torch.float64).flatten(1)  # (N, D)
    # The default of cdist expands the square for large batches, which loses the small distances that matter here.
    distance = torch.cdist(rows, columns, compute_mode="donot_use_mm_for_euclid_dist")
    return distance.square() / rows.shape[1]


def match(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Pair reconstructions (N, …) with originals (B, …) by the Hungarian method on the pairwise mean squared error.

    Returns ``assignment``, (B,) long: ``assignment[i]`` is the index of the reconstruction that belongs to original i,
    so ``reconstruction[assignment]`` lines up with ``truth``. It minimises
    Σᵢ MSE(reconstruction[assignment[i]], truth[i]) over all ways of choosing (Kuhn 1955). There may be more
    reconstructions than originals: a client that hides among others gives back their images, too.

    A reconstruction with NaN or infinite pixels is as far as can be from every original: it takes a place that the
    finite ones leave over.
    """
    cost = pairwise_mse(reconstruction, truth).numpy()
    finite = np.isfinite(cost)
    if not finite.all():
        # Dearer than any way of pairing the finite ones, yet small enough not to swamp their differences.
        largest = cost[finite].max() if finite.any() else 0.0
        cost = np.where(finite, cost, (len(cost) + 1) * (largest + 1.0))
    _, columns = linear_sum_assignment(cost)  # rows come back in order 0…B−1
    return torch.from_numpy(np.asarray(columns, dtype=np.int64))
