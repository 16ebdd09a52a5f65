"""What defences share: which part of a signal they act on, checks of their options, and sizes on the wire."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.types import Setting, Signal

__all__ = ["draw", "each_gradient", "finite", "mask_like", "norm", "sparse_bytes", "whole"]

_INDEX_BYTES = 4


def each_gradient(signal: Signal, setting: Setting, change: Callable[[Tensor], Tensor]) -> Signal:
    """``change`` applied to every parameter's part of the signal, in order; buffers pass as they are."""
    buffers = {name for name, _ in setting.model.named_buffers()}
    return {name: value if name in buffers else change(value) for name, value in signal.items()}


def draw(sample: Callable[..., Tensor], like: Tensor, generator: torch.Generator) -> Tensor:
    """``sample(shape, generator=…)`` on the CPU, where the stream lives, moved to where ``like`` is."""
    return sample(like.shape, generator=generator, dtype=torch.float64).to(like)


def norm(signal: Signal) -> Tensor:
    """The norm of all tensors together, differentiable."""
    return torch.stack([value.square().sum() for value in signal.values()]).sum().sqrt()


def mask_like(replayed: Signal, observed: Signal) -> Signal:
    """The replay where the observed signal is not zero, and 0 elsewhere; names that were not sent pass."""
    return {name: value * (observed[name] != 0) if name in observed else value for name, value in replayed.items()}


def sparse_bytes(signal: Signal) -> int:
    """Values and 4-byte indices of what is not zero, or all values where that is shorter; for each tensor."""
    total = 0
    for value in signal.values():
        size = value.element_size()
        total += min(int(value.count_nonzero()) * (size + _INDEX_BYTES), value.numel() * size)
    return total


def finite(name: str, value: object, *, low: float = 0.0, high: float = math.inf, strict: bool = False) -> float:
    """A number in [low, high] (``strict``: above low), or :class:`BadInput` saying so."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < low or value > high or (strict and value == low):  # type: ignore[operator]
        bound = f"above {low:g}" if strict else f"at least {low:g}"
        more = f" and at most {high:g}" if high < math.inf else ""
        raise BadInput(f"{name} is {value!r}; it must be a number {bound}{more}.")
    return float(value)  # type: ignore[arg-type]


def whole(name: str, value: object, *, low: int = 1) -> int:
    """A whole number of at least ``low``, or :class:`BadInput` saying so."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise BadInput(f"{name} is {value!r}; it must be a whole number of at least {low}.")
    return value
