"""Small layers that learned attacks share, and linear maps in closed form."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from leakscope.errors import BadInput

__all__ = ["Standardise", "convolution", "linear", "ridge"]

_FLOOR = 1e-8
_COLUMNS = 256
_STRENGTHS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 1.0, 10.0)


@final
class Standardise(nn.Module):
    """(x − μ)/σ with each column's mean and deviation over the training rows; a column that never varies gives 0."""

    mean: Tensor
    gain: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("gain", torch.ones(width))

    def fit(self, rows: Tensor) -> None:
        self.mean.copy_(rows.mean(0))
        deviation = rows.std(0, correction=0)
        self.gain.copy_(torch.where(deviation > _FLOOR, 1 / deviation.clamp_min(_FLOOR), torch.zeros_like(deviation)))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) * self.gain


def linear(before: int, after: int, generator: torch.Generator, *, zero: bool = False) -> nn.Linear:
    """A linear layer with weights U(±1/√before), torch's own start, drawn from ``generator``; or all zeros."""
    layer = nn.Linear(before, after, device="meta").to_empty(device="cpu")
    bound = 0.0 if zero else 1 / math.sqrt(before)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


def convolution(before: int, after: int, kernel: int, generator: torch.Generator, *, zero: bool = False) -> nn.Conv2d:
    """A convolution that keeps the size of its input, with weights U(±1/√fan in) from ``generator``; or all zeros."""
    layer = nn.Conv2d(before, after, kernel, padding=kernel // 2, device="meta").to_empty(device="cpu")
    bound = 0.0 if zero else 1 / math.sqrt(before * kernel * kernel)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


def ridge(rows: Tensor, targets: Tensor, *, held: int) -> tuple[Tensor, Tensor, float]:
    """W (D, M) and b (M,) that minimise ‖X W + b − Y‖²/N + λ‖W‖² on standardised columns of X (N, D), and λ.

    λ is the one of a grid with the least error on the last ``held`` rows, which stay out of the solution; it is judged
    by some of the targets' columns only, which costs little. Solved in float64, over columns or over rows, whichever
    are fewer.
    """
    fitted = len(rows) - held
    if fitted < 1 or held < 1:
        raise BadInput(f"{len(rows)} pairs, {held} of them held out, are too few for a regression.")
    mean, centre = rows[:fitted].mean(0), targets[:fitted].mean(0)
    scale = rows[:fitted].std(0, correction=0)
    scale = torch.where(scale > _FLOOR, scale, torch.full_like(scale, torch.inf))  # what never varies says nothing
    x, y = (rows - mean) / scale, targets - centre
    inside, wide = x[:fitted].double(), x.shape[1] > fitted
    gram = (inside @ inside.T if wide else inside.T @ inside) / fitted

    def solve(strength: float, columns: Tensor) -> Tensor:
        """W for these columns of Y."""
        wanted = columns.double() if wide else inside.T @ columns.double()
        factor = torch.linalg.cholesky(gram + strength * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
        found = torch.cholesky_solve(wanted / fitted, factor)
        return (inside.T @ found if wide else found).to(rows)

    some = y[:, :: max(1, y.shape[1] // _COLUMNS)]
    errors = [
        (float((x[fitted:] @ solve(strength, some[:fitted]) - some[fitted:]).square().mean()), strength)
        for strength in _STRENGTHS
    ]
    _, strength = min(errors)
    weights = solve(strength, y[:fitted]) / scale[:, None]
    return weights, centre - mean @ weights, strength
