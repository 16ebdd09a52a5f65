"""Solving Δᵀ X = G when both sides carry noise of unknown size, without ever asking for the truth.

Where the small singular values of Δ stand below the noise, a plain solve returns noise. How much of each singular
direction to keep is measured, not set: patches are taken to frequencies (their fine detail is weaker, and drowns
first), and each direction of each band is kept by the share of its energy that is above the noise
(:func:`leakscope.functional.linalg.shrinkage`). The noise itself is read off parts of the data that hold nothing else:

- the equations left over (D − 1 − P of them): what no picture explains;
- the direction 1, to which a pre-norm transformer's gradients are orthogonal;
- the mismatch of Σ_p Δ_p and ∂L/∂b.

That estimate may be short where Δ itself is noisy, so several multiples of it are tried, and the picture is kept that
breaks least at the joints between patches and leaves [0, 1] least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import final

import torch
from torch import Tensor

from leakscope.functional.linalg import Spectrum, numerical_rank, relative, shrinkage, spectrum
from leakscope.functional.patches import bands, from_patches, joint_jump, range_excess, to_frequencies

__all__ = ["PatchSolution", "PatchSystem", "solve"]

_ORTHOGONAL = 0.01
_ENOUGH = 8
_MULTIPLES = (1.0, 1.5, 3.0, 6.0, 12.0)
_BETTER = 0.98
_UNTOUCHED = 0.999


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSystem:
    """Δ (P, D), G as (D, C, p, q), ∂L/∂b (D,) where there is a bias; all float64."""

    delta: Tensor
    weight: Tensor
    bias: Tensor | None

    @property
    def count(self) -> int:
        return self.delta.shape[0]

    @property
    def patch(self) -> tuple[int, int]:
        return self.weight.shape[2], self.weight.shape[3]

    @property
    def mismatch(self) -> float | None:
        """‖Σ_p Δ_p − ∂L/∂b‖ / ‖∂L/∂b‖: 0 when the two gradients belong together; ``None`` without a bias."""
        return None if self.bias is None else relative(self.delta.sum(0) - self.bias, self.bias)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSolution:
    """The patches (P, C·p·q) in the model's own units, and what the solve found out.

    ``independent`` is the rank of Δ up to rounding, ``rank`` counts the singular values above its noise, too, and
    ``condition`` is the ratio of the first to the last of those.
    ``residual`` is ‖G off the column space of Δᵀ‖ / ‖G‖, with ``spare`` equations to see it by. ``noise`` is the
    standard deviation of the noise in G over that of G.
    """

    patches: Tensor
    independent: int
    rank: int
    condition: float
    self_check: float | None
    residual: float
    spare: int
    noise: float


def solve(system: PatchSystem, *, mean: Tensor, std: Tensor, shape: tuple[int, int, int]) -> PatchSolution:
    """The patches of one image; ``mean``, ``std`` (C, 1, 1) and ``shape`` (C, H, W) turn them into a picture."""
    channels, patch = system.weight.shape[1], system.patch
    a = system.delta.mT  # (D, P)
    g = to_frequencies(system.weight.flatten(1), channels, patch)  # (D, M)
    groups = bands(channels, patch).to(a.device)
    noise = _Noise.of(system, a, g, groups)
    found = spectrum(a - noise.tied * a.mean(0), g - noise.tied * g.mean(0), rows=a.shape[0] - noise.tied)
    floor = noise.spectral_floor(*a.shape)
    best: tuple[float, Tensor, Tensor] | None = None
    cuts = (0.0, floor) if floor > float(found.values[-1]) else (0.0,)
    for cut, multiple in product(cuts, _MULTIPLES):
        variance, gain = _filtered(found, groups, noise, cut, multiple)
        frequencies = found.solve(gain)
        patches = to_frequencies(frequencies, channels, patch, inverse=True)
        picture = from_patches(patches, shape, patch) * std + mean
        score = joint_jump(picture, patch) + range_excess(picture)
        if best is None or score < _BETTER * best[0]:
            best = (score, patches, variance)
        if float(gain.min()) > _UNTOUCHED:
            break  # the noise is too small to matter, and so are its multiples
    assert best is not None
    rank = numerical_rank(found.values, max(a.shape), floor=floor)
    counts = torch.bincount(groups).to(g)
    return PatchSolution(
        patches=best[1],
        independent=len(found.values),
        rank=rank,
        condition=float(found.values[0] / found.values[max(rank, 1) - 1]),
        self_check=system.mismatch,
        residual=math.sqrt(float(found.outside.sum() / g.square().sum())) if found.freedom else 0.0,
        spare=found.freedom,
        noise=math.sqrt(float((best[2] * counts).sum() / counts.sum() / g.square().mean())),
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    """``tied`` is 1 where every δ_p is orthogonal to 1, else 0. ``delta`` and ``weight`` are variances per entry."""

    tied: int
    delta: float
    weight: float

    @classmethod
    def of(cls, system: PatchSystem, a: Tensor, g: Tensor, groups: Tensor) -> _Noise:
        width, count = a.shape
        along = a.sum(0).square().sum() / width  # the energy of Δ along 1/√D
        tied = bool(along < _ORTHOGONAL * a.square().sum() / width)
        if tied:
            fine = torch.bincount(groups)[groups] >= _ENOUGH
            entries = (g.sum(0).square() / width)[fine if bool(fine.any()) else slice(None)]
            return cls(tied=1, delta=float(along) / count, weight=float(entries.median()) / 0.455)
        if system.bias is None:
            return cls(tied=0, delta=0.0, weight=0.0)
        share = system.mismatch or 0.0
        delta = float((system.delta.sum(0) - system.bias).square().mean()) / count
        return cls(tied=0, delta=delta, weight=share**2 * float(g.square().mean()))

    def spectral_floor(self, width: int, count: int) -> float:
        """The largest singular value that noise alone would give Δ."""
        return math.sqrt(self.delta) * (math.sqrt(width) + math.sqrt(count))


def _filtered(found: Spectrum, groups: Tensor, noise: _Noise, cut: float, multiple: float) -> tuple[Tensor, Tensor]:
    """The noise variance of each band, and the gain (r, M) of each coefficient; directions below ``cut`` get 0."""
    kept = (found.values > cut).to(found.values)[:, None]
    if found.freedom >= _ENOUGH:
        variance = _by_group(found.outside / found.freedom, groups) * multiple**2
        return variance, kept * shrinkage(found, groups, variance)
    own = torch.full((int(groups.max()) + 1,), noise.weight * multiple**2).to(found.values)
    variance, gain = own, kept * shrinkage(found, groups, own)
    for _ in range(2):  # the error of Δ adds to each band by the size of what it multiplies
        variance = own + noise.delta * _by_group(found.solve(gain).square().sum(0), groups)
        gain = kept * shrinkage(found, groups, variance)
    return variance, gain


def _by_group(values: Tensor, groups: Tensor) -> Tensor:
    """The mean of ``values`` (M,) over each group."""
    total = torch.zeros(int(groups.max()) + 1).to(values).index_add_(0, groups, values)
    return total / torch.bincount(groups).to(values).clamp_min(1)
