"""Solving Δᵀ X = G when the size of the noise is known, since the server knows the defence that put it there.

Then nothing has to be read off the picture, and what pictures look like can be said beforehand instead. Pixels are
taken for a Gaussian field, grey on average, correlated as exp(−distance / ℓ); in each patch's frequencies its
components are all but independent, and only their means (frequency 0) go together across patches. With K the covariance
of one component over the patches and σ² = σ_G² + σ_Δ² E‖x‖² the noise in its equations, the best linear estimate is

    x = m + K Δ (Δᵀ K Δ + σ² 1)⁻¹ (g − Δᵀ m),

which keeps what stands above the noise, and takes from the neighbours what does not.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from leakscope.attacks.analytic._one_image import Finding
from leakscope.attacks.analytic._patch_system import PatchSystem
from leakscope.errors import NotApplicable
from leakscope.functional.patches import from_patches, range_excess, to_frequencies, to_patches
from leakscope.models import VisionModel
from leakscope.types import Observation

__all__ = ["estimate", "informed"]

_WORTH: Final = 0.002  # below, the spectrum measured from the picture itself serves better than any said beforehand
_DROWNED: Final = 0.5
_MISFIT: Final = 3.0  # several images, or a defence after the noise, leave more than that
_LENGTH: Final = 0.3  # of the image's side
_SPREAD: Final = 0.25  # standard deviation of a pixel in [0, 1]
_COLOUR: Final = 0.15  # variance of a colour difference, in that of a channel


def estimate(system: PatchSystem, model: VisionModel, *, delta: float, weight: float) -> tuple[Tensor, float]:
    """The patches (P, C·p·q) in the model's own units, and how far the equations are off, in units of the noise.

    ``delta`` and ``weight`` are the standard deviations of the noise in the entries of Δ and of G.
    """
    channels, (p, q) = system.weight.shape[1], system.patch
    _, height, width = model.input.shape
    a = system.delta.mT  # (D, P)
    g = to_frequencies(system.weight.flatten(1), channels, (p, q))  # (D, M)
    grey = model.normalise(torch.full((1, *model.input.shape), 0.5, dtype=model.dtype, device=model.device))
    mean = to_frequencies(to_patches(grey[0].double(), (p, q)), channels, (p, q))  # (P, M)
    variance = (
        _variances(channels, (p, q), max(height, width)).to(a) * float((_SPREAD / model.std.double()).mean()) ** 2
    )
    noise = weight**2 + delta**2 * (mean.square().sum(0) + system.count * variance)  # (M,)
    left = a.mT @ (g - a @ mean)  # (P, M)
    values, vectors = torch.linalg.eigh(a.mT @ a)
    found = vectors @ (variance / (values.clamp_min(0)[:, None] * variance + noise) * (vectors.mT @ left))
    together = _means_together((height // p, width // q), (p, q), max(height, width)).to(a)
    for band in range(0, g.shape[1], p * q):  # frequency 0 of each channel
        k = variance[band] * together
        inner = a.mT @ a @ k + noise[band] * torch.eye(system.count).to(a)
        found[:, band] = k @ torch.linalg.solve(inner, left[:, band])
    patches = found + mean
    return to_frequencies(patches, channels, (p, q), inverse=True), _misfit(a, g, patches, delta, weight)


def informed(observation: Observation, system: PatchSystem) -> Finding | None:
    """The picture by :func:`estimate`; ``None`` for a server that knows of no noise, or of noise that does not fit."""
    anatomy = observation.model.anatomy
    position, embedding = anatomy.position_embedding, anatomy.patch_embedding
    if position is None or embedding is None or not observation.defences:
        return None
    known = [defence.deviation(observation.signal, 1) for defence in observation.defences]
    delta, weight = (math.hypot(*(one.get(name, 0.0) for one in known)) for name in (position.name, embedding.weight))
    share = weight / max(float(system.weight.square().mean().sqrt()), torch.finfo(torch.float64).tiny)
    if share < _WORTH:
        return None
    if share > _DROWNED:
        raise NotApplicable(f"{share:.0%} of the patch embedding's gradient is noise: only a blur would come back.")
    model = observation.model
    patches, misfit = estimate(system, model, delta=delta, weight=weight)
    if misfit > _MISFIT:
        return None
    pixels = from_patches(patches, model.input.shape, system.patch) * model.std.double() + model.mean.double()
    evidence = {"patches": system.count, "noise": share, "misfit": misfit, "excess": range_excess(pixels)}
    message = (
        f"The noise is known, {share:.1%} of the gradient: what it leaves of the picture, by what pictures look like."
    )
    return Finding(pixels=pixels, energy=abs(misfit - 1), evidence=evidence, message=message)


def _misfit(a: Tensor, g: Tensor, patches: Tensor, delta: float, weight: float) -> float:
    """Root mean square of what no picture explains over what the noise explains; 0 without spare equations."""
    spare = a.shape[0] - a.shape[1]
    if spare < 1:
        return 0.0
    basis, _ = torch.linalg.qr(a)
    outside = (g - basis @ (basis.mT @ g)).square().sum(0)
    expected = spare * (weight**2 + delta**2 * patches.square().sum(0))
    return math.sqrt(float(outside.sum() / expected.sum().clamp_min(torch.finfo(a.dtype).tiny)))


def _variances(channels: int, patch: tuple[int, int], side: int) -> Tensor:
    """The variance of each frequency of a patch, (C·p·q,), for pixels of variance 1."""
    covariance = torch.exp(-_distances(patch) / (_LENGTH * side))  # (p·q, p·q)
    one = to_frequencies(to_frequencies(covariance, 1, patch).mT, 1, patch).diagonal()
    luminance = 1 + (channels - 1) * (1 - _COLOUR)
    return torch.cat([luminance * one, *([_COLOUR * one] * (channels - 1))])


def _means_together(grid: tuple[int, int], patch: tuple[int, int], side: int) -> Tensor:
    """The correlation of the patches' means, (P, P)."""
    return torch.exp(-_distances(grid, patch) / (_LENGTH * side))


def _distances(size: tuple[int, int], step: tuple[int, int] = (1, 1)) -> Tensor:
    axes = [torch.arange(n, dtype=torch.float64) * s for n, s in zip(size, step, strict=True)]
    points = torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")], dim=1)
    return torch.cdist(points, points)
