"""The sparsest basis of a column space: the columns of D, each known to hold many zeros, from L = D M⁻¹.

A direction q with many zeros in L q is a column of D (up to scale). It is the null vector of any B − 1 rows of L in
which that column is zero, so rows are drawn at random, B − 1 at a time. Where a ReLU switches half of the units off,
one draw in 2^(B−1) hits a given column; most give nothing, and are seen to: L q has no more zeros than were drawn.

Two things make hits more frequent than that. For half of the draws, rows of small norm, which few samples share, come
more often. And a draw that lies in the zeros of several columns at once gives a mixture of them, told by zeros beyond
those drawn: in its plane with a direction that is known, rows that vanish at one angle show a sparser part.

What vanishes is judged against the noise of L, and a column that was found is made precise on all of its zeros at once
(the least singular vector of those rows), since the few rows that were drawn amplify the noise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

__all__ = ["SparseBasis", "sparse_bases"]

_CHUNK: Final = 8192
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
    """``directions`` (B, B) has one q in each column; ``zero`` (m, B) is where L q vanishes; ``drawn`` counts draws."""

    directions: Tensor
    zero: Tensor
    drawn: int


def sparse_bases(left: Tensor, noise: Tensor, *, generator: torch.Generator, samples: int) -> Iterator[SparseBasis]:
    """The sparsest basis found so far, whenever a chunk of draws changed it, until ``samples`` are drawn.

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
        if changed and basis.complete:
            zero = torch.ones(left.shape, dtype=torch.bool)
            zero[alive] = basis.vanishes(basis.directions)
            yield SparseBasis(directions=basis.directions, zero=zero, drawn=drawn)
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
        self._by_norm = rows[rows.norm(dim=1).argsort(stable=True)]
        # One sample has one direction, sparse or not.
        self._found = torch.ones(int(self._count == 1), self._count, dtype=rows.dtype)
        self._zeros = torch.zeros(len(self._found), dtype=torch.long)
        self._seen: set[bytes] = set()

    @property
    def complete(self) -> bool:
        return len(self._found) == self._count

    @property
    def directions(self) -> Tensor:
        """(B, k), one in each column."""
        return self._found.mT

    def vanishes(self, directions: Tensor) -> Tensor:
        """Where L q is zero up to its noise, (m, k), for directions (B, k)."""
        error = (self._noise.square() @ directions.square()).sqrt()
        edge = (_NOISE * error).clamp(min=_LEAST * self._scale, max=0.1 * self._scale)
        return (self._rows @ directions).abs() <= edge

    def search(self, draws: int) -> bool:
        """Draw, take up what is sparse, take mixtures apart; whether the basis changed."""
        drawn = torch.cat([
            _null_vectors(self._by_norm, draws // 2, self._generator, slope=0.5),
            _null_vectors(self._by_norm, draws - draws // 2, self._generator, slope=0.0),
        ])  # fmt: skip
        waiting = self._sparse(drawn)
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
            if float((direction - weights @ self._found).norm()) <= _INDEPENDENT:
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


def _null_vectors(rows: Tensor, draws: int, generator: torch.Generator, *, slope: float) -> Tensor:
    """Unit vectors (k, B), each orthogonal to B − 1 different rows; k ≤ draws, as degenerate draws are left out.

    The i-th row has the weight i^(−slope).
    """
    total, count = rows.shape
    weight = torch.arange(1, total + 1) ** slope
    # The least of independent exponential times: drawing by weight without putting back.
    times = torch.empty(draws, total).exponential_(generator=generator) * weight
    picks = times.topk(count - 1, dim=1, largest=False).indices
    # One more equation, rᵀq = 1, makes the system square; a generic r leaves the direction as it is.
    extra = torch.randn(count, dtype=rows.dtype, generator=generator).expand(len(picks), 1, count)
    side = torch.zeros(len(picks), count, 1, dtype=rows.dtype)
    side[:, -1] = 1
    found, info = torch.linalg.solve_ex(torch.cat([rows[picks], extra], dim=1), side)
    found = found[..., 0]
    length = found.norm(dim=1)
    good = (info == 0) & torch.isfinite(length) & (length > 0)
    return found[good] / length[good, None]
