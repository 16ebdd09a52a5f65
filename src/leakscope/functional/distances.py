"""Distances between two signals, given as sequences of tensors in the same order. Each returns a scalar."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["RESIDUALS", "cosine", "relative_l2", "squared_l2", "tag"]

Tensors = Sequence[Tensor]


def squared_l2(replayed: Tensors, observed: Tensors) -> Tensor:
    """Σ_l ‖g_l − g*_l‖² (DLG; GradViT)."""
    return _gaps(replayed, observed, (1.0,) * len(observed))


def relative_l2(replayed: Tensors, observed: Tensors) -> Tensor:
    """Σ_l ‖g_l − g*_l‖² / ‖g*_l‖²: every layer counts alike, however small its gradient.

    A layer below 1e-6 of the whole signal's norm is rounding rather than signal, and is divided by that in its place.
    """
    return _gaps(replayed, observed, tuple((1 / _scales(observed)).square().tolist()))


def cosine(replayed: Tensors, observed: Tensors) -> Tensor:
    """1 − ⟨g, g*⟩ / (‖g‖ ‖g*‖) over the concatenation of all layers (Inverting Gradients).

    A signal of zero norm has no direction: the distance is then 1, with zero gradient.
    """
    return _Cosine.apply(len(replayed), *replayed, *observed)  # type: ignore[no-any-return]


def tag(replayed: Tensors, observed: Tensors, *, alpha: float, decay: float) -> Tensor:
    """Σ_l w_l (‖g_l − g*_l‖₂² + α ‖g_l − g*_l‖₁), w_l = exp(−decay · l / L): early layers weigh most (TAG)."""
    count = len(observed)
    return _gaps(replayed, observed, tuple(math.exp(-decay * index / count) for index in range(count)), alpha)


def _gaps(replayed: Tensors, observed: Tensors, weights: tuple[float, ...], alpha: float = 0.0) -> Tensor:
    if len(replayed) != len(observed):
        raise ValueError(f"{len(replayed)} tensors were replayed and {len(observed)} observed.")
    return _Gaps.apply(weights, alpha, *replayed, *observed)  # type: ignore[no-any-return]


def _difference(replayed: Tensors, observed: Tensors) -> list[Tensor]:
    return [a - b for a, b in zip(replayed, observed, strict=True)]


def _relative(replayed: Tensors, observed: Tensors) -> list[Tensor]:
    return [(a - b) / scale for a, b, scale in zip(replayed, observed, _scales(observed), strict=True)]


def _scales(observed: Tensors) -> Tensor:
    norms = torch.stack([b.norm() for b in observed])
    return norms.clamp_min(float(1e-6 * norms.norm()) or 1.0)


RESIDUALS: Final[Mapping[Any, Callable[[Tensors, Tensors], list[Tensor]]]] = {
    squared_l2: _difference,
    relative_l2: _relative,
}
"""The distances that are sums of squares Σ_l ‖r_l‖², each with its residuals r_l: what least squares can minimise."""


class _Gaps(torch.autograd.Function):
    """Σ_l w_l (‖g_l − g*_l‖₂² + α ‖g_l − g*_l‖₁). Written out, as below, its derivative takes a third of the passes."""

    @staticmethod
    def forward(ctx: Any, weights: tuple[float, ...], alpha: float, *tensors: Tensor) -> Tensor:
        mine, theirs = tensors[: len(weights)], tensors[len(weights) :]
        gaps = [a - b for a, b in zip(mine, theirs, strict=True)]
        ctx.save_for_backward(*gaps)
        ctx.weights, ctx.alpha = weights, alpha
        sizes = (_dot(gap, gap) + alpha * gap.abs().sum() if alpha else _dot(gap, gap) for gap in gaps)
        return _sum(w * size for w, size in zip(weights, sizes, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (upstream,) = grad_outputs
        found: list[Tensor] = []
        for gap, weight in zip(ctx.saved_tensors, ctx.weights, strict=True):
            scale = float(upstream) * weight
            along = torch.mul(gap, 2 * scale)
            found.append(along.add_(gap.sign(), alpha=scale * ctx.alpha) if ctx.alpha else along)
        return (None, None, *found, *(None,) * len(found))


class _Cosine(torch.autograd.Function):
    """The derivative is c₁ g* + c₂ g: written out, it takes half the passes over memory that autograd would."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        mine, theirs = tensors[:count], tensors[count:]
        inner = _sum(_dot(a, b) for a, b in zip(mine, theirs, strict=True))
        own = _sum(_dot(a, a) for a in mine)
        product = (own * _sum(_dot(b, b) for b in theirs)).sqrt()
        defined = bool(product != 0)  # not a number stays not a number
        ctx.save_for_backward(*tensors)
        ctx.coefficients = (float(-1 / product), float(inner / (product * own))) if defined else (0.0, 0.0)
        return 1 - inner / product if defined else torch.ones_like(inner)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (upstream,) = grad_outputs
        tensors = ctx.saved_tensors
        count = len(tensors) // 2
        towards, along = (float(upstream) * c for c in ctx.coefficients)
        pairs = zip(tensors[:count], tensors[count:], strict=True)
        return (None, *(torch.mul(b, towards).add_(a, alpha=along) for a, b in pairs), *(None,) * count)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1))


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()
