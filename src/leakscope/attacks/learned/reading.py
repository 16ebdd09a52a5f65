"""What an inverter reads of a signal: groups of tensors, each as one row of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor

from leakscope.attacks.learned.hashing import Hash
from leakscope.models.anatomy import Classifier, Layer

__all__ = ["Group", "LinearInput", "Reading", "gather", "linear_input"]

_TINY = 1e-12


class Reading(Protocol):
    """Signals {name: (N, …)} ↦ (N, ``width``)."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int: ...

    def __call__(self, signal: Mapping[str, Tensor]) -> Tensor: ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some tensors flattened into one row, hashed into at most ``bins`` numbers.

    ``unit``: the row is divided by its norm, whose logarithm stands beside it. A gradient's size depends on how wrong
    the model is about the image (a factor of thousands between images), its direction on what the image shows.
    """

    name: str
    tensors: tuple[str, ...]
    size: int
    bins: int
    unit: bool = False
    signed: bool = False

    @property
    def hash(self) -> Hash:
        return Hash(size=self.size, bins=self.bins, signed=self.signed)

    @property
    def width(self) -> int:
        return self.hash.width + int(self.unit)

    def __call__(self, signal: Mapping[str, Tensor]) -> Tensor:
        row = torch.cat([signal[name].flatten(1) for name in self.tensors], dim=1)  # (N, size)
        if not self.unit:
            return self.hash(row)
        norm = row.norm(dim=1, keepdim=True).clamp_min(_TINY)
        return torch.cat([self.hash(row / norm), norm.log()], dim=1)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearInput:
    """The input of a linear layer by its gradients' closed form, â = Gᵀ g_b / ‖g_b‖², (N, D).

    Exact for one image. For several it is a mean of their inputs, weighted by residuals. Without a bias the row of G
    with the largest norm stands in, turned to point the way of the input: for the true class p − 1 is negative.
    """

    name: str
    weight: str
    bias: str | None
    width: int

    def __call__(self, signal: Mapping[str, Tensor]) -> Tensor:
        weight = signal[self.weight].flatten(2)  # (N, K, D)
        if self.bias is not None:
            residual = signal[self.bias]  # (N, K)
            return torch.einsum("nkd,nk->nd", weight, residual) / residual.square().sum(1, keepdim=True).clamp_min(
                _TINY
            )
        norms = weight.norm(dim=2)  # (N, K)
        largest = norms.argmax(dim=1)
        rows = weight[torch.arange(len(weight), device=weight.device), largest]
        return -rows / norms.amax(dim=1, keepdim=True).clamp_min(_TINY)


def gather(name: str, tensors: Sequence[str], shapes: Mapping[str, tuple[int, ...]], **options: object) -> Group:
    """The group of these tensors, whose shapes are given."""
    size = sum(torch.Size(shapes[one]).numel() for one in tensors)
    return Group(name=name, tensors=tuple(tensors), size=size, **options)  # type: ignore[arg-type]


def linear_input(
    layer: Layer | Classifier, shapes: Mapping[str, tuple[int, ...]], *, name: str, unbiased: bool = False
) -> LinearInput | None:
    """The reading of a linear layer's input, where its gradients are in the signal.

    ``unbiased``: also without a bias, for a classifier, whose residuals are known to be negative for the true class.
    """
    bias = layer.bias if layer.bias in shapes else None
    if layer.weight not in shapes or len(shapes[layer.weight]) != 2 or (bias is None and not unbiased):
        return None
    return LinearInput(name=name, weight=layer.weight, bias=bias, width=shapes[layer.weight][1])
