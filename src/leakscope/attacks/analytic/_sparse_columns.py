"""The sparsest basis of a column space: the columns of D, each known to hold many zeros, from L = D M⁻¹.

A direction q with many zeros in L q is a column of D (up to scale), or a mixture of columns that share zeros. Such
directions are the minima that descent finds from random starts (:mod:`~leakscope.attacks.analytic._sparse_directions`),
in rows that were made even first. Columns that are seldom reached from anywhere are reached from what is known: among
the rows where known ones vanish, or out of a mixture: in its plane with a known direction, rows that vanish at one
angle show a sparser part.

What vanishes is judged against the noise of L, and a column that was found is made precise on all of its zeros at once
(the least singular vector of those rows), which the noise of single rows hardly moves.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.analytic._sparse_directions import anneal, even, move_along

__all__ = ["SparseBasis", "sparse_bases"]

_CHUNK: Final = 64
_COARSE: Final = 20
_FINE: Final = 20
_LOOKS: Final = 32  # how many candidates of a chunk are looked into
_SPARE: Final = 2  # zeros beyond those that a null vector has by construction
_AGREE: Final = 3  # rows that must agree on a part of a mixture
_ROUGH: Final = 1e-3  # a first zero, as a share of the root mean square entry, before the direction is made precise
_NOISE: Final = 8.0  # standard deviations
_LEAST: Final = 1e-10
_LEAST_ANGLE: Final = 1e-6
_INDEPENDENT: Final = 1e-3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SparseBasis:
    """``directions`` (B, B): one q in each column; ``zero`` (m, B): where L q vanishes; ``drawn`` counts starts."""

    directions: Tensor
    zero: Tensor
    drawn: int

    def replaced(self, left: Tensor, known: Mapping[int, Tensor]) -> SparseBasis:
        """With directions that are known from elsewhere, (B,) each, in the place of those at their index."""
        directions, zero = self.directions.clone(), self.zero.clone()
        for index, direction in known.items():
            directions[:, index] = direction
            zero[:, index] = (left @ direction).abs() <= _ROUGH / math.sqrt(len(left))
        return replace(self, directions=directions, zero=zero)


def sparse_bases(left: Tensor, noise: Tensor, *, generator: torch.Generator, samples: int) -> Iterator[SparseBasis]:
    """The sparsest basis found so far, whenever a chunk of starts changed it, until ``samples`` are made.

    ``left`` (m, B) has orthonormal columns, and ``noise`` (B,) is the standard deviation of each column's error. Which
    basis is right is the caller's to judge: ask for the next one until it is.
    """
    count = left.shape[1]
    size = left.norm(dim=1)
    # Units that no sample switches on say nothing.
    alive = size > max(_NOISE * float(noise.norm()), _LEAST * float(size.max()))
    basis = _Basis(left[alive], noise, generator)
    drawn, changed = 0, True
    while True:
        if changed and (directions := basis.directions) is not None:
            zero = torch.ones(left.shape, dtype=torch.bool)
            zero[alive] = basis.vanishes(directions)
            yield SparseBasis(directions=directions, zero=zero, drawn=drawn)
        if drawn >= samples or count == 1 or int(alive.sum()) < count:
            return
        draws = min(_CHUNK, samples - drawn)
        drawn += draws
        changed = basis.search(draws)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A direction with the rows where it nearly vanishes, as bytes; the one with most of them comes first."""

    rank: tuple[int, int]
    zero: bytes
    direction: Tensor

    def __lt__(self, other: _Candidate) -> bool:
        return self.rank < other.rank


class _Basis:
    """The sparsest independent directions found so far, (k, B) with k ≤ B."""

    def __init__(self, rows: Tensor, noise: Tensor, generator: torch.Generator) -> None:
        self._rows, self._noise, self._generator = rows, noise, generator
        self._count = rows.shape[1]
        self._scale = 1 / math.sqrt(max(len(rows), 1))
        self._blur = min(max(_NOISE * float(noise.norm()) / self._scale, _LEAST_ANGLE), _ROUGH)
        self._needed = self._count - 1 + _SPARE
        self._even, self._change = even(rows)
        self._turn = -1
        self._found = torch.zeros(0, self._count, dtype=rows.dtype)
        self._zeros = torch.zeros(0, dtype=torch.long)
        self._seen: set[bytes] = set()

    @property
    def complete(self) -> bool:
        return len(self._found) == self._count

    @property
    def directions(self) -> Tensor | None:
        """(B, B), one in each column, or ``None``.

        Where one is missing, any will do: mixing others into d_i spoils their inputs, and not a_i.
        """
        if len(self._found) < self._count - 1:
            return None
        return torch.cat([self._found, torch.linalg.qr(self._found.mT, mode="complete")[0].mT[len(self._found) :]]).mT

    def vanishes(self, directions: Tensor) -> Tensor:
        """Where L q is zero up to its noise, (m, k), for directions (B, k)."""
        error = (self._noise.square() @ directions.square()).sqrt()
        edge = (_NOISE * error).clamp(min=_LEAST * self._scale, max=0.1 * self._scale)
        return (self._rows @ directions).abs() <= edge

    def search(self, draws: int) -> bool:
        """Descend, take up what is sparse, take mixtures apart; whether the basis changed."""
        waiting = self._sparse(self._descend(draws))
        changed = False
        for _ in range(_LOOKS):
            while waiting and waiting[0].zero in self._seen:
                heapq.heappop(waiting)
            if not waiting:
                break
            candidate = heapq.heappop(waiting)
            direction = self._precise(candidate.direction)
            if direction is None:
                continue
            self._seen.add(candidate.zero)
            zeros = int(self.vanishes(direction[:, None]).sum())
            parts = self._parts(direction)
            changed |= self._enter(direction, zeros)
            # A part has more zeros than the mixture.
            for part in self._sparse(parts, more_than=zeros):
                heapq.heappush(waiting, part)
        return changed

    def _descend(self, draws: int) -> Tensor:
        """Sparse directions (k, B) from random starts, in rows made even.

        Every other time among the rows where one or two of those found vanish: the rank is lower there, and samples
        that share much have more zeros there. What is then missing is their own share of the direction.
        """
        self._turn += 1
        starts = torch.randn(draws, self._count, dtype=self._rows.dtype, generator=self._generator)
        starts = starts / starts.norm(dim=1, keepdim=True)
        several = min(self._turn % 3, len(self._found), self._count - 2)
        if several <= 0:
            found = anneal(self._even, starts, first=1.0, last=0.01, steps=_COARSE)
        else:
            picks = torch.rand(draws, len(self._found), generator=self._generator).argsort(dim=1)[:, :several]
            known = torch.linalg.solve(self._change, self._found.mT).mT
            known = (known / known.norm(dim=1, keepdim=True))[picks]  # (k, f, B)
            share = self.vanishes(self._found.mT).mT[picks].all(dim=1).to(starts.dtype)
            barred = torch.linalg.qr(known.mT)[0]
            found = anneal(self._even, starts, first=1.0, last=0.01, steps=_COARSE, share=share, barred=barred)
            for index in [*range(several)] * several:
                found = move_along(self._even, found, known[:, index], edge=0.02)
        found = anneal(self._even, found, first=0.02, last=1e-5, steps=_FINE) @ self._change.mT
        return found / found.norm(dim=1, keepdim=True)

    def _sparse(self, directions: Tensor, more_than: int = 0) -> list[_Candidate]:
        """Those (k, B) with enough zeros, sparsest first; without mixtures of what is known while more is missing."""
        zero = self._nearly_zero(directions)
        zeros = zero.sum(dim=1)
        worth = zeros >= max(self._needed, more_than + 1)
        if len(self._found) and not self.complete:
            span = torch.linalg.qr(self._found.mT)[0]
            off = directions - (directions @ span) @ span.mT
            worth &= (off.norm(dim=1) > _INDEPENDENT) | (zeros > self._zeros.min())
        return [
            _Candidate(
                rank=(-int(zeros[index]), index), zero=zero[index].numpy().tobytes(), direction=directions[index]
            )
            for index in zeros.argsort(descending=True, stable=True).tolist()
            if worth[index]
        ]

    def _nearly_zero(self, directions: Tensor) -> Tensor:
        return (directions @ self._rows.mT).abs() <= _ROUGH * self._scale

    def _precise(self, direction: Tensor) -> Tensor | None:
        """The direction from all of its zeros at once; ``None`` if it loses them."""
        near = self._rows[self._nearly_zero(direction[None])[0]]
        edge = _ROUGH * self._scale
        # Among the rows where it nearly vanishes some may not belong: reweighting lets go of them.
        while edge > _LEAST * self._scale:
            edge *= 0.1
            weights = 1 / ((near @ direction).square() + edge**2)
            direction = torch.linalg.eigh((near * weights[:, None]).mT @ near)[1][:, 0]
        zero = self.vanishes(direction[:, None])[:, 0]
        if int(zero.sum()) < self._needed:
            return None
        direction = torch.linalg.svd(self._rows[zero], full_matrices=False)[2][-1]
        return direction if int(self.vanishes(direction[:, None]).sum()) >= self._needed else None

    def _enter(self, direction: Tensor, zeros: int) -> bool:
        """Take the direction into the basis, if it is independent of it or sparser than one that it depends on.

        A mixture of columns vanishes only where all of them do, so columns drive out the mixtures they are part of.
        """
        if len(self._found):
            weights = torch.linalg.lstsq(self._found.mT, direction[:, None]).solution[:, 0]
            # B directions span everything, however badly rounding makes a nearly singular basis tell it.
            if self.complete or float((direction - weights @ self._found).norm()) <= _INDEPENDENT:
                worse = (weights.abs() > _INDEPENDENT) & (self._zeros < zeros)
                if not bool(worse.any()):
                    return False
                out = int(torch.where(worse, self._zeros, len(self._rows) + 1).argmin())
                keep = torch.arange(len(self._found)) != out
                self._found, self._zeros = self._found[keep], self._zeros[keep]
        self._found = torch.cat([self._found, direction[None]])
        self._zeros = torch.cat([self._zeros, torch.tensor([zeros])])
        return True

    def _parts(self, direction: Tensor) -> Tensor:
        """Directions (k, B) in the planes of this one and each of the basis, with zeros that neither has.

        In the plane of u and v a row vanishes at the angle of (L u, L v); rows that agree on an angle show a part.
        """
        one, others = self._rows @ direction, self._rows @ self._found.mT  # (m,), (m, k)
        common = (one.abs()[:, None] <= _ROUGH * self._scale) & (others.abs() <= _ROUGH * self._scale)
        angle = torch.atan2(others, one[:, None]) % math.pi
        angle = torch.where(common, torch.inf, angle).sort(dim=0).values
        close = angle[_AGREE - 1 :] - angle[: 1 - _AGREE] < self._blur  # inf − inf is NaN: not close
        close[1:] &= ~close[:-1]  # the first of a run
        row, other = close.nonzero(as_tuple=True)
        at = angle[row + _AGREE // 2, other][:, None]
        mixed = self._found[other] * at.cos() - direction * at.sin()
        length = mixed.norm(dim=1)
        return mixed[length > _INDEPENDENT] / length[length > _INDEPENDENT, None]
