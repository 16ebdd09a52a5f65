"""Directions q in which many rows of L vanish: descent on Σ_r log((L q)_r² + ε²) over the unit sphere, from any start.

The sum counts the rows that are not zero as ε falls to nothing. Each step is iteratively reweighted least squares:
q becomes the least eigenvector of Σ_r w_r L_r L_rᵀ with w_r = 1/((L q)_r² + ε²). Many starts run side by side.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

__all__ = ["anneal", "even", "move_along"]

_SWEEPS: Final = 30
_FIRM: Final = 1e4  # how strongly a barred direction is kept out
_FARTHEST: Final = 4.0


def even(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows L T of one norm that point everywhere alike, (m, B), and T (B, B): Tyler's estimate of scatter.

    Which entries are zero does not change. What the samples have in common (units that are on for all of them, with
    large entries) no longer outweighs what tells them apart.
    """
    count = rows.shape[1]
    change = torch.eye(count, dtype=rows.dtype)
    for _ in range(_SWEEPS):
        moved = _unit(rows @ change)
        values, vectors = torch.linalg.eigh(moved.mT @ moved * (count / len(rows)))
        least = values[-1] * torch.finfo(rows.dtype).eps
        change = change @ (vectors * values.clamp_min(least).rsqrt()) @ vectors.mT
    return _unit(rows @ change) * math.sqrt(count / len(rows)), change


def anneal(
    rows: Tensor,
    starts: Tensor,
    *,
    first: float,
    last: float,
    steps: int,
    share: Tensor | None = None,
    barred: Tensor | None = None,
) -> Tensor:
    """Local minima (k, B) from ``starts`` (k, B), with ε falling from ``first`` to ``last`` root mean square entries.

    ``share`` (k, m) weights the rows for each start; ``barred`` (k, B, f) are orthonormal directions to stay clear of.
    """
    scale = 1 / math.sqrt(len(rows))
    bar = None if barred is None else _FIRM * barred @ barred.mT
    for step in range(steps):
        edge = scale * first * (last / first) ** (step / max(steps - 1, 1))
        weights = 1 / ((starts @ rows.mT).square() + edge**2)
        if share is not None:
            weights = weights * share
        weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        spread = (rows.mT * weights[:, None, :]) @ rows  # (k, B, B)
        starts = torch.linalg.eigh(spread if bar is None else spread + bar)[1][:, :, 0]
    return starts


def move_along(rows: Tensor, directions: Tensor, known: Tensor, *, edge: float) -> Tensor:
    """The sparsest q + c f for each pair of a direction q and a known f, (k, B): c is one that makes a row vanish."""
    scale = 1 / math.sqrt(len(rows))
    one, other = directions @ rows.mT, known @ rows.mT  # (k, m)
    steps = -one / torch.where(other.abs() > 1e-3 * scale, other, torch.inf)
    steps = torch.where(steps.abs() < _FARTHEST, steps, 0)  # farther, it would be f again
    length = 1 + 2 * steps * (directions * known).sum(dim=1, keepdim=True) + steps.square()
    moved = (one[:, None] + steps[:, :, None] * other[:, None]).square() / length[:, :, None]  # (k, m, m)
    best = (moved + (edge * scale) ** 2).log().sum(dim=2).argmin(dim=1, keepdim=True)
    return _unit(directions + steps.gather(1, best) * known)


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
