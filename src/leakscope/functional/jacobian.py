"""The Jacobian of a signal in the images, A = ∂g/∂x, without ever writing it down.

With the double-backward graph of g, Aᵀu is one more backward pass; and since Aᵀu is linear in u, its own gradient in u
is the product A w. Both are exact, work for every protocol whose replay is differentiable, and need no more memory than
a few gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast, final

import torch
from torch import Tensor

from leakscope.random import fork

__all__ = ["Jacobian", "dense_gram", "ritz", "unit_vectors"]

_CHUNK: Final = 32
_ENTRIES: Final = 8_000_000
"""Numbers that a block of products may hold at a time: 64 MB."""


@final
class Jacobian:
    """A at ``images``, rows scaled: row block t is ∂(signal_t / scale_t)/∂x.

    ``function`` gives the signal by name, differentiable; tensors without a scale, and those that do not depend on the
    images, have no rows.
    """

    def __init__(
        self, function: Callable[[Tensor], Mapping[str, Tensor]], images: Tensor, scales: Mapping[str, float]
    ) -> None:
        self._x = images.detach().clone().requires_grad_()
        signal = function(self._x)
        self._out = [v / scales[name] for name, v in signal.items() if name in scales and v.requires_grad]
        self._u = [torch.zeros_like(v, requires_grad=True) for v in self._out]
        self.columns = self._x.numel()
        self.rows = sum(v.numel() for v in self._out)
        self._pulled = self._pull(self._u, create_graph=True) if self._out else None

    def transposed(self, rows: Sequence[Tensor]) -> Tensor:
        """Aᵀu for u given by blocks, one tensor per row block: (columns,)."""
        return self._pull(rows).flatten()

    def blocks(self, rows: Tensor) -> list[Tensor]:
        """A vector (rows,) as one tensor for each row block."""
        return [part.view_as(v) for part, v in zip(rows.split([v.numel() for v in self._out]), self._out, strict=True)]

    def apply(self, columns: Tensor) -> Tensor:
        """A w for every row w of ``columns`` (k, columns): (k, rows)."""
        if self._pulled is None:
            return columns.new_zeros(len(columns), 0)
        directions = columns.to(self._x).view(-1, *self._x.shape)
        try:
            moved = _grad([self._pulled], self._u, [directions], batch=len(directions))
        except RuntimeError:  # an operation that cannot be batched: one direction at a time
            each = [_grad([self._pulled], self._u, [w]) for w in directions]
            moved = [torch.stack(block) for block in zip(*each, strict=True)]
        return torch.cat([block.flatten(1) for block in moved], dim=1)

    def normal(self, columns: Tensor) -> Tensor:
        """AᵀA w for every row w of ``columns`` (k, columns): (k, columns)."""
        if self._pulled is None:
            return torch.zeros_like(columns)
        directions = columns.to(self._x).view(-1, *self._x.shape)
        try:
            moved = _grad([self._pulled], self._u, [directions], batch=len(directions))  # A w, by blocks (k, …)
            return _grad(self._out, [self._x], moved, batch=len(directions))[0].flatten(1)
        except RuntimeError:  # an operation that cannot be batched: one direction at a time
            return torch.stack([self._one(w) for w in directions])

    def _one(self, direction: Tensor) -> Tensor:
        assert self._pulled is not None
        return self._pull(_grad([self._pulled], self._u, [direction])).flatten()

    def _pull(self, rows: Sequence[Tensor], *, create_graph: bool = False) -> Tensor:
        return _grad(self._out, [self._x], list(rows), create_graph=create_graph)[0]

    def draw(self, generator: torch.Generator) -> list[Tensor]:
        """A random u ~ N(0, 1), by blocks."""
        return [torch.randn(v.shape, generator=generator, dtype=torch.float32).to(v) for v in self._out]


def _grad(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    given: Sequence[Tensor],
    *,
    create_graph: bool = False,
    batch: int | None = None,
) -> list[Tensor]:
    """Σ givenᵀ ∂outputs/∂inputs, for ``batch`` of given at once; zeros where nothing depends on an input."""
    found = torch.autograd.grad(
        list(outputs),
        list(inputs),
        list(given),
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
        is_grads_batched=batch is not None,
    )
    lead = () if batch is None else (batch,)
    # torch types these as tensors; what does not depend on an input is None all the same.
    maybe = cast("tuple[Tensor | None, ...]", found)
    return [x.new_zeros((*lead, *x.shape)) if g is None else g for g, x in zip(maybe, inputs, strict=True)]


def unit_vectors(jacobian: Jacobian) -> Iterator[Tensor]:
    """Every column's unit vector, as many at a time (k, columns) as their products may take memory."""
    n = jacobian.columns
    chunk = max(1, min(_CHUNK, _ENTRIES // max(jacobian.rows, 1)))
    for start in range(0, n, chunk):
        basis = torch.zeros(min(chunk, n - start), n, dtype=torch.float64)
        basis[torch.arange(len(basis)), start + torch.arange(len(basis))] = 1
        yield basis


def dense_gram(jacobian: Jacobian) -> Tensor:
    """AᵀA, (n, n) in float64, a block of unit vectors at a time."""
    gram = torch.cat([jacobian.normal(basis).double().cpu() for basis in unit_vectors(jacobian)])
    return (gram + gram.T) / 2


def ritz(jacobian: Jacobian, probes: int, generator: torch.Generator) -> tuple[Tensor, float]:
    """Lower bounds on the largest ``probes`` singular values of A, and an unbiased estimate of ‖A‖²_F.

    Random combinations of rows, Aᵀu, span a space that leans towards the strongest directions (Halko, Martinsson and
    Tropp 2011). On an orthonormal basis Q of it, QᵀAᵀAQ has eigenvalues no larger than AᵀA's own, one by one (Cauchy):
    what is found there is there. E‖Aᵀu‖² = ‖A‖²_F for u ~ N(0, 1).
    """
    drawn = [jacobian.transposed(jacobian.draw(fork(generator, f"probe/{i}"))).double().cpu() for i in range(probes)]
    sketch = torch.stack(drawn)  # (k, n)
    frobenius = float(sketch.square().sum(1).mean())
    basis, _ = torch.linalg.qr(sketch.T)  # (n, k)
    small = torch.stack([jacobian.normal(column[None])[0].double().cpu() for column in basis.T]) @ basis  # (k, k)
    values = torch.linalg.eigvalsh((small + small.T) / 2).flip(0)
    return values.clamp_min(0).sqrt(), frobenius
