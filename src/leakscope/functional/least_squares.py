"""The damped normal equations (AᵀA + μI) d = −Aᵀr: the step of Levenberg–Marquardt, dense or by products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

__all__ = ["CountSketch", "conjugate_gradients", "damped_factor"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CountSketch:
    """S (m × rows): every row goes to one of m bins, with a random sign (Clarkson and Woodruff 2013).

    With a few times as many bins as A has columns, ‖S(Ad + r)‖ is ‖Ad + r‖ for every d at once, up to a constant near
    one; and where r = 0 can be had, SA d = −Sr has the same solution.
    """

    bins: Tensor
    signs: Tensor
    size: int

    @staticmethod
    def draw(rows: int, size: int, like: Tensor, generator: torch.Generator) -> CountSketch:
        bins = torch.randint(size, (rows,), generator=generator)
        signs = torch.randint(2, (rows,), generator=generator) * 2 - 1
        return CountSketch(bins=bins.to(like.device), signs=signs.to(like), size=size)

    def __call__(self, vectors: Tensor) -> Tensor:
        """(…, rows) ↦ (…, m)."""
        return vectors.new_zeros(*vectors.shape[:-1], self.size).index_add_(-1, self.bins, vectors * self.signs)


def damped_factor(gram: Tensor, damping: float) -> Tensor | None:
    """The Cholesky factor of AᵀA + μI (n, n); ``None`` where that is not positive definite."""
    shifted = gram.clone()
    shifted.diagonal().add_(damping)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    return None if int(failed) else factor


def conjugate_gradients(
    normal: Callable[[Tensor], Tensor], slope: Tensor, damping: float, *, iterations: int, tolerance: float
) -> Tensor:
    """d from Aᵀr (n,) and products w ↦ AᵀA w alone; ends when the remainder is ``tolerance`` of where it began."""
    solution, remainder = torch.zeros_like(slope), -slope
    direction, size = remainder, float(remainder.dot(remainder))
    enough = tolerance**2 * size
    for _ in range(iterations):
        if size <= enough:
            break
        product = normal(direction) + damping * direction
        curvature = float(direction.dot(product))
        if not curvature > 0:  # rounding has eaten what was positive
            break
        along = size / curvature
        solution = solution + along * direction
        remainder = remainder - along * product
        before, size = size, float(remainder.dot(remainder))
        direction = remainder + size / before * direction
    return solution
