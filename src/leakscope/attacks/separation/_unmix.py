"""From two quadratic forms to the tokens, by least squares with everything that is known of them.

Levenberg–Marquardt fits A, within its affine spaces, to b_sᵀ N_k b_t = 0 for s ≠ t and |Z a_t|²/D + ε = (mᵀa_t)², each
weighted by its own uncertainty, so that a misfit near 1 or below means: separated, as far as the rounding of the
gradients allows. The guess to start from is :mod:`_start`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.separation._forms import Forms
from leakscope.attacks.separation._start import start
from leakscope.attacks.separation.confinement import Confinement

__all__ = ["Unmixed", "unmix"]

_STEPS: Final = 25
_INNER: Final = 60
_EXACT: Final = 1e-8
_TRIALS: Final = 6
_SETTLED: Final = 1e-4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Unmixed:
    """``a`` (T, T): a token in each column, position by position, B to each. ``misfit`` is near 1 where all fits."""

    a: Tensor
    misfit: float
    steps: int


def unmix(space: Confinement, forms: Forms) -> Unmixed:
    """The tokens of every position; which of them belong to one image is another question."""
    problem = _Problem.of(space, forms)
    a = problem.feasible(start(space, forms))
    if space.images == 1:
        return Unmixed(a=a, misfit=0.0, steps=0)
    damping, steps = 1e-3, 0
    misfit = float("inf")
    while steps < _STEPS:
        here = problem.at(a)
        misfit, steps = here.misfit, steps + 1
        for _ in range(_TRIALS):
            moved = problem.feasible(a + a @ problem.spread(here.newton(damping)))
            after = here.again(moved)
            if after < here.cost:
                break
            damping = max(10 * damping, 1e-6)
        else:
            break
        a, damping = moved, max(damping / 5, 1e-12)
        if here.cost - after < _SETTLED * here.cost:
            break
    return Unmixed(a=a, misfit=misfit, steps=steps)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """A ← A(1 + E) with E's columns summing to zero over each position: E = Q y, y (P, B−1, P, B)."""

    forms: Forms
    duals: Tensor
    into: Tensor  # the least-norm way back into the affine spaces, (T, P)
    basis: Tensor  # Q of one position, (B, B−1)
    quadric: Tensor  # ZᵀZ/D − mmᵀ
    images: int

    @classmethod
    def of(cls, space: Confinement, forms: Forms) -> _Problem:
        size = space.images
        ones = torch.ones(size, 1).to(space.duals)
        return cls(
            forms=forms,
            duals=space.duals,
            into=torch.linalg.pinv(space.duals.mT),
            basis=torch.linalg.svd(ones, full_matrices=True).U[:, 1:],
            quadric=forms.tokens.mT @ forms.tokens / len(forms.tokens) - torch.outer(forms.scale, forms.scale),
            images=size,
        )

    def feasible(self, a: Tensor) -> Tensor:
        """The nearest A with d_qᵀa_t = [t at q]."""
        count = self.duals.shape[1]
        place = torch.eye(count).to(a).repeat_interleave(self.images, dim=1)
        return a + self.into @ (place - self.duals.mT @ a)

    def spread(self, y: Tensor) -> Tensor:
        """y ↦ E."""
        size = len(self.duals)
        return torch.einsum("ia,qarj->qirj", self.basis, y).reshape(size, size)

    def gather(self, e: Tensor) -> Tensor:
        """The transpose of :meth:`spread`."""
        count = self.duals.shape[1]
        return torch.einsum("ia,qirj->qarj", self.basis, e.reshape(count, self.images, count, self.images))

    def at(self, a: Tensor) -> _Point:
        b = torch.linalg.inv(a).mT
        off = 1 - torch.eye(len(a)).to(a)
        weights = torch.stack([off / form.deviation(b) for form in self.forms.forms]) / 2**0.5
        sizes = (self.forms.tokens @ a).square().mean(0)
        return _Point(self, a, weights, 1 / (self.forms.scale_error * sizes))


@final
class _Point:
    """The equations at one A: values, and the Gauss–Newton step."""

    def __init__(self, problem: _Problem, a: Tensor, weights: Tensor, scale_weights: Tensor) -> None:
        self._problem, self._weights, self._scale_weights = problem, weights, scale_weights
        self._o, self._off, self._scale = self._values(a)
        self._pull = (a.mT @ problem.quadric @ a).mT  # ∂(aᵀQa)/∂E, halved
        self.cost = float(self._off.square().sum() + self._scale.square().sum())
        self.misfit = (self.cost / (self._scale.numel() ** 2)) ** 0.5

    def again(self, a: Tensor) -> float:
        """The cost at another A under the weights of this one."""
        _, off, scale = self._values(a)
        cost = float(off.square().sum() + scale.square().sum())
        return cost if cost == cost else float("inf")

    def _values(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b = torch.linalg.inv(a).mT
        o = torch.stack([b.mT @ form.matrix @ b for form in self._problem.forms.forms])
        quadric = (a * (self._problem.quadric @ a)).sum(0) + self._problem.forms.epsilon
        return o, self._weights * o, self._scale_weights * quadric

    def _forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        e = self._problem.spread(y)
        moved = e @ self._o
        return -self._weights * (moved + moved.mT), 2 * self._scale_weights * (self._pull * e).sum(0)

    def _backward(self, off: Tensor, scale: Tensor) -> Tensor:
        weighted = self._weights * off
        e = -((weighted + weighted.mT) @ self._o).sum(0) + 2 * self._pull * (self._scale_weights * scale)
        return self._problem.gather(e)

    def newton(self, damping: float) -> Tensor:
        """y of the damped step, by conjugate gradients; :meth:`_nearly_inverse` leaves them little to do."""
        blocks, diagonal = self._blocks()
        damp = damping * diagonal
        precondition = self._nearly_inverse(blocks, damp)
        residual = -self._backward(self._off, self._scale)
        y, z = torch.zeros_like(residual), precondition(residual)
        direction, size = z, float((residual * z).sum())
        enough = _EXACT * size
        for _ in range(_INNER):
            if not size > enough:
                break
            image = self._backward(*self._forward(direction)) + damp * direction
            length = size / float((direction * image).sum())
            y, residual = y + length * direction, residual - length * image
            z = precondition(residual)
            before, size = size, float((residual * z).sum())
            direction = z + (size / before) * direction
        return y

    def _blocks(self) -> tuple[Tensor, Tensor]:
        """JᵀJ of each pair of positions by itself, (P, P, n, n) with n = 2B(B−1), and its diagonal, like y.

        The forms are taken as diagonal already: then E[q, r] meets E[r, q] and nothing else.
        """
        size, basis, count = self._problem.images, self._problem.basis, self._problem.duals.shape[1]
        d = self._o.diagonal(dim1=1, dim2=2).reshape(2, count, size)
        w = self._weights.reshape(2, count, size, count, size)
        eye = torch.eye(size).to(w)
        here = torch.einsum("kqirj,ia,jb,krj->qrkijab", w, basis, eye, d)  # from E[q, r]
        there = torch.einsum("kqirj,ja,ib,kqi->qrkijab", w, basis, eye, d)  # from E[r, q]
        jacobian = torch.stack([here, there], dim=5).flatten(5).flatten(2, 4)  # (P, P, 2B², n)
        blocks = 2 * jacobian.mT @ jacobian  # a pair shows up at (q, r) and at (r, q)
        diagonal = blocks.diagonal(dim1=-2, dim2=-1).reshape(count, count, 2, size - 1, size)[:, :, 0]
        return blocks, diagonal.permute(0, 2, 1, 3)

    def _nearly_inverse(self, blocks: Tensor, damp: Tensor) -> Callable[[Tensor], Tensor]:
        """(JᵀJ + damping)⁻¹ as if the forms were diagonal: pair by pair, and the scale equations by Woodbury's rule."""
        root = torch.linalg.cholesky(blocks + torch.diag_embed(_paired(damp).flatten(2)))

        def by_pairs(y: Tensor) -> Tensor:  # (…, P, B−1, P, B), one right-hand side for each leading index
            flat = y.reshape(-1, *damp.shape)
            pair = _paired(flat)  # (m, P, P, 2, B−1, B)
            solved = torch.cholesky_solve(pair.flatten(3).permute(1, 2, 3, 0), root).permute(3, 0, 1, 2)
            return solved.reshape(pair.shape)[:, :, :, 0].permute(0, 1, 3, 2, 4).reshape(y.shape)

        tokens = len(self._scale)
        pulls = torch.diag_embed(2 * self._pull * self._scale_weights).permute(2, 0, 1)  # row t: ∂(equation t)/∂E
        rows = torch.stack([self._problem.gather(pull) for pull in pulls])
        solved = by_pairs(rows)
        small = torch.eye(tokens).to(damp) + rows.flatten(1) @ solved.flatten(1).mT
        inner = torch.linalg.cholesky((small + small.mT) / 2)

        def nearly(y: Tensor) -> Tensor:
            first = by_pairs(y)
            share = torch.cholesky_solve((rows.flatten(1) @ first.flatten())[:, None], inner)
            return first - (solved.flatten(1).mT @ share).reshape(y.shape)

        return nearly


def _paired(y: Tensor) -> Tensor:
    """y[q, ·, r, ·] beside y[r, ·, q, ·]: (…, P, B−1, P, B) → (…, P, P, 2, B−1, B)."""
    return torch.stack([y.transpose(-3, -2), y.movedim(-2, -4)], dim=-3)
