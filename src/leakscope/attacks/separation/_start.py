"""A first guess at the tokens, from one eigenproblem.

N₁ = A D₁ Aᵀ and N₂ = A D₂ Aᵀ share their eigenvectors: (N₁ + iN₂)⁻¹(N₁ − iN₂) b_t = e^(−2iθ_t) b_t, on the unit circle,
where nothing blows up. Noise mixes eigenvectors whose angles are close, most often those of different positions. But
d_q = Σ_i b_(i,q) is known: in the eigenvectors' basis it splits into B clusters of angles, and the part of d_q in a
cluster is b_(i,q), whatever was mixed within. Where several splits are plausible, the one is kept whose tokens obey
|Z a|²/D + ε = (mᵀa)² best.
"""

from __future__ import annotations

from typing import Final, final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from leakscope.attacks.separation._forms import Forms
from leakscope.attacks.separation.confinement import Confinement

__all__ = ["start"]

_SPARE: Final = 3
_SPLITS: Final = 6
_SWEEPS: Final = 2
_TOLERANCE: Final = 10.0
_LARGE: Final = 9.0
_CIRCLE: Final = 1e-9


def start(space: Confinement, forms: Forms) -> Tensor:
    """A (T, T): B tokens to each position, in its affine space."""
    return torch.linalg.inv(_best(space, forms, _Eigenvectors(space, forms))).mT


@final
class _Eigenvectors:
    """b (T, T), their angles as points on the circle, and how much of d_q each holds: ``places`` (P, T)."""

    def __init__(self, space: Confinement, forms: Forms) -> None:
        one, two = (form.matrix / form.matrix.norm() for form in forms.forms)
        pencil = torch.linalg.solve(torch.complex(one, two), torch.complex(one, -two))
        self.points, vectors = torch.linalg.eig(pencil)
        self.b = _real(self.points, vectors)
        self.places = space.duals.mT @ torch.linalg.pinv(self.b).mT
        energy = torch.complex((self.b * (one @ self.b)).sum(0), (self.b * (two @ self.b)).sum(0)).abs()
        self.mass = self.places.square() * energy
        self.share = self.places.abs() / self.places.norm(dim=0)

    def split(self, q: int, centres: Tensor) -> Tensor:
        """d_q in B parts (T, B), each eigenvector's share going to the nearest of these centres."""
        nearest = (self.points[:, None] - self.points[centres]).abs().argmin(1)
        return self.b @ (self.places[q][:, None] * F.one_hot(nearest, len(centres)).to(self.b))

    def plausible(self, q: int, images: int) -> list[Tensor]:
        """Sets of B centres that leave little of d_q far from all of them, the best first."""
        some = min(images + _SPARE, len(self.points))
        top = torch.cat([self.mass[q].topk(some).indices, self.share[q].topk(some).indices]).unique()
        sets = torch.combinations(torch.arange(len(top)), images)
        far = (self.points[:, None] - self.points[top]).abs().square()
        score = (self.mass[q][:, None] * far[:, sets].amin(-1)).sum(0)
        return [top[sets[k]] for k in score.argsort(stable=True)[:_SPLITS]]


def _real(points: Tensor, vectors: Tensor) -> Tensor:
    """Eigenvectors that are real up to a phase; where noise made two of them a conjugate pair, its real basis.

    A pair leaves the circle together, to points of one angle inside and outside.
    """
    turn = (vectors * vectors).sum(0)
    vectors = vectors / (turn / turn.abs()).sqrt()
    b = vectors.real.clone()
    outside, inside = (points.abs() > 1 + _CIRCLE).nonzero()[:, 0], (points.abs() < 1 - _CIRCLE).nonzero()[:, 0]
    if len(outside) == len(inside) > 0:
        apart = (points[outside, None] * points[inside].conj() - 1).abs()
        _, partner = linear_sum_assignment(apart.cpu().numpy())
        b[:, inside[torch.as_tensor(partner)]] = vectors[:, outside].imag
    return b


def _best(space: Confinement, forms: Forms, found: _Eigenvectors) -> Tensor:
    """The splits of all positions, (T, T): first B eigenvectors for each by where they stand out, then one by one."""
    size, count = space.images, space.count
    _, columns = linear_sum_assignment(-found.share.repeat_interleave(size, dim=0).cpu().numpy())
    assigned = torch.as_tensor(columns).reshape(count, size)
    b = torch.cat([found.split(q, assigned[q]) for q in range(count)], dim=1)
    if size == 1:
        return b
    splits = [[found.split(q, centres) for centres in found.plausible(q, size)] for q in range(count)]
    best = _strangeness(space, forms, b)
    for _ in range(_SWEEPS):
        before = best
        for q in range(count):
            for split in splits[q]:
                other = b.clone()
                other[:, q * size : (q + 1) * size] = split
                strangeness = _strangeness(space, forms, other)
                if strangeness < best:
                    best, b = strangeness, other
        if best == before:
            break
    return b


def _strangeness(space: Confinement, forms: Forms, b: Tensor) -> float:
    """How badly tokens obey the equation of their scale, and leave the range of pixels; failures count by logarithm."""
    inverse, failed = torch.linalg.inv_ex(b)
    if bool(failed):
        return float("inf")
    a = inverse.mT
    seen = (forms.tokens @ a).square().mean(0)
    off = (seen + forms.epsilon - (forms.scale @ a).square()) / seen
    size = a.square().sum(0) / len(space.factor.right)  # a normalised pixel's mean square
    return float(((off.square() + (_TOLERANCE * forms.scale_error) ** 2) * (1 + size / _LARGE) ** 2).log().sum())
