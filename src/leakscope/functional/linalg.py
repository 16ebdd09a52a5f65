"""Linear systems from gradients: how many equations they really hold, and solving them under noise of unknown size.

Everything runs in float64. A is (D, P), the right-hand sides G are (D, M), the unknowns X (P, M): A X = G.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Spectrum", "numerical_rank", "relative", "row_space", "shrinkage", "spectrum"]

_EPSILON = float(torch.finfo(torch.float64).eps)
_FEW = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """A = U diag(s) Vᵀ with the right-hand sides seen from it.

    ``coefficients`` = UᵀG, (r, M). ``outside`` is the energy of each right-hand side off the column space of A, (M,):
    what no X can explain. ``freedom`` is the dimension of that complement.
    """

    values: Tensor
    right: Tensor
    coefficients: Tensor
    outside: Tensor
    freedom: int

    def solve(self, gain: Tensor) -> Tensor:
        """X = V diag(1/s) (gain ⊙ UᵀG); ``gain`` (r, M) or (r, 1) lies in [0, 1]."""
        return self.right.mT @ (gain * self.coefficients / self.values[:, None])


def spectrum(a: Tensor, g: Tensor, *, rows: int | None = None) -> Spectrum:
    """Decompose A and project G on it. ``rows``: how many rows are independent, if the caller knows of ties."""
    a, g = a.double(), g.double()
    u, s, v = torch.linalg.svd(a, full_matrices=False)
    rows = a.shape[0] if rows is None else rows
    rank = min(rows, numerical_rank(s, max(a.shape)))
    u, s, v = u[:, :rank], s[:rank], v[:rank]
    seen = u.mT @ g
    return Spectrum(
        values=s, right=v, coefficients=seen, outside=(g - u @ seen).square().sum(0), freedom=max(rows - rank, 0)
    )


def numerical_rank(values: Tensor, size: int, *, floor: float = 0.0) -> int:
    """How many singular values (in descending order) stand above rounding and above ``floor``."""
    if len(values) == 0 or float(values[0]) == 0:
        return 0
    return int((values > max(size * _EPSILON * float(values[0]), floor)).sum())


def shrinkage(found: Spectrum, groups: Tensor, noise: Tensor) -> Tensor:
    """The share of each coefficient that is signal, (r, M): (1 − σ²/⟨c²⟩)₊, without knowing the truth.

    Right-hand sides of one group (``groups``, (M,) indices) have noise of variance ``noise[group]`` and, along one
    singular direction, signals of one size; their mean square ⟨c²⟩ = signal + σ² is measured from the data
    (James–Stein; the gain of the Wiener filter). Directions that hold nothing but noise get 0, which truncates the
    solve there; without noise every gain is 1. Groups of few right-hand sides borrow from neighbouring directions.
    """
    energy = found.coefficients.square()
    gain = torch.zeros_like(energy)
    for group in range(len(noise)):
        members = groups == group
        count = int(members.sum())
        if count == 0:
            continue
        size = energy[:, members].mean(1)  # (r,)
        samples = count
        if count < _FEW:
            width = (2 * _FEW // count) | 1
            samples *= width
            size = F.avg_pool1d(size[None, None], width, 1, width // 2, count_include_pad=False)[0, 0]
        # The mean square of pure noise scatters by √(2/n): what lies within three of that is taken for noise.
        certain = size > noise[group] * (1 + 3 * math.sqrt(2 / samples))
        share = torch.where(certain, 1 - noise[group] / size.clamp_min(torch.finfo(size.dtype).tiny), 0)
        gain[:, members] = share[:, None]
    return gain


def row_space(matrix: Tensor, rank: int) -> tuple[Tensor, float, float]:
    """An orthonormal basis of the row space, (rank, n), with the condition number and the gap behind it.

    The gap is the first singular value left out over the last one kept: near 0 where the rank is sharp.
    """
    _, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    kept, left = float(s[rank - 1]), float(s[rank]) if rank < len(s) else 0.0
    if kept <= 0:
        return v[:rank], float("inf"), float("inf")
    return v[:rank], float(s[0]) / kept, left / kept


def relative(difference: Tensor, whole: Tensor) -> float:
    """‖difference‖ / ‖whole‖, 0 where both vanish."""
    size = float(whole.norm())
    gap = float(difference.norm())
    return gap / size if size > 0 else (0.0 if gap == 0 else float("inf"))
