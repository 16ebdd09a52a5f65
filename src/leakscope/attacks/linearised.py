"""r(x + d) ≈ r + Jd around one point, and the damped least-squares step from it: J written down, or by products."""

from __future__ import annotations

from typing import Final, Protocol, final

import torch
from torch import Tensor

from leakscope.functional.jacobian import Jacobian, unit_vectors
from leakscope.functional.least_squares import CountSketch, conjugate_gradients, damped_factor
from leakscope.random import fork

__all__ = ["ByProducts", "Dense", "Linearised"]

_PROBES: Final = 4


class Linearised(Protocol):
    """What a least-squares solver needs of J at one point. Residuals are vectors (rows,), steps (columns,)."""

    @property
    def diagonal(self) -> float:
        """The mean of JᵀJ's diagonal: the scale that damping is measured in."""
        ...

    def step(self, rows: Tensor, damping: float) -> Tensor | None:
        """d = −(JᵀJ + μI)⁻¹ Jᵀr; ``None`` where rounding makes that impossible."""
        ...

    def gain(self, rows: Tensor, step: Tensor) -> tuple[float, float]:
        """(‖r‖², what of it the step promises to take away), both as this linear model sees them."""
        ...

    def loss(self, rows: Tensor) -> float:
        """‖r‖² as this linear model sees it."""
        ...


@final
class Dense:
    """J by its columns, (n, m): of all rows, or of their sketch."""

    def __init__(self, jacobian: Jacobian, sketch: CountSketch | None) -> None:
        self._sketch = sketch
        self._transposed = torch.cat([self._seen(jacobian.apply(basis)) for basis in unit_vectors(jacobian)])  # (n, m)
        self._gram = (self._transposed @ self._transposed.T).double()
        self._factor: tuple[float, Tensor | None] | None = None

    @property
    def diagonal(self) -> float:
        return float(self._gram.diagonal().mean())

    def step(self, rows: Tensor, damping: float) -> Tensor | None:
        if self._factor is None or self._factor[0] != damping:
            self._factor = (damping, damped_factor(self._gram, damping))
        factor = self._factor[1]
        if factor is None:
            return None
        return -torch.cholesky_solve(self._slope(rows)[:, None], factor)[:, 0]

    def gain(self, rows: Tensor, step: Tensor) -> tuple[float, float]:
        promised = -(2 * self._slope(rows) + self._gram @ step).dot(step)
        return self.loss(rows), float(promised)

    def loss(self, rows: Tensor) -> float:
        return float(self._seen(rows).double().square().sum())

    def _slope(self, rows: Tensor) -> Tensor:
        return (self._transposed @ self._seen(rows)).double()

    def _seen(self, rows: Tensor) -> Tensor:
        return rows if self._sketch is None else self._sketch(rows)


@final
class ByProducts:
    """J by its products with vectors alone: two backward passes for each iteration of conjugate gradients."""

    def __init__(self, jacobian: Jacobian, *, iterations: int, tolerance: float, generator: torch.Generator) -> None:
        self._jacobian, self._iterations, self._tolerance = jacobian, iterations, tolerance
        self._generator = generator

    @property
    def diagonal(self) -> float:
        probes = [
            self._jacobian.transposed(self._jacobian.draw(fork(self._generator, f"probe/{index}")))
            for index in range(_PROBES)
        ]
        return float(torch.stack(probes).square().sum(1).mean()) / self._jacobian.columns

    def step(self, rows: Tensor, damping: float) -> Tensor | None:
        return conjugate_gradients(
            self._normal, self._slope(rows), damping, iterations=self._iterations, tolerance=self._tolerance
        )

    def gain(self, rows: Tensor, step: Tensor) -> tuple[float, float]:
        promised = -(2 * self._slope(rows) + self._normal(step)).dot(step)
        return self.loss(rows), float(promised)

    def loss(self, rows: Tensor) -> float:
        return float(rows.double().square().sum())

    def _slope(self, rows: Tensor) -> Tensor:
        return self._jacobian.transposed(self._jacobian.blocks(rows))

    def _normal(self, direction: Tensor) -> Tensor:
        return self._jacobian.normal(direction[None])[0]
