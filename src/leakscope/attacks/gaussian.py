"""What public images say of all images, to second order: a Gaussian, as a space to search and as a term."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation, Residuals
from leakscope.errors import BadInput, NotApplicable
from leakscope.types import Knows, Observation

__all__ = ["Gaussian", "Improbability", "public_gaussian"]

_MOST: Final = 4096
"""Values of an image. Its covariance is written down and decomposed: 128 MB and half a minute at this size."""
_KEPT: Final = 2
_known: dict[str, tuple[Tensor, Tensor, Tensor]] = {}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """Images as N(μ, Σ), Σ = A Aᵀ. As a decoder it maps coordinates u (B, D), N(0, I), to x = μ + A u (B, C, H, W)."""

    images: int
    input: tuple[int, ...]
    mean: Tensor
    ways: Tensor
    back: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.images, len(self.mean))

    def __call__(self, free: Tensor) -> Tensor:
        """Normalised images at these coordinates."""
        return (self.mean + free @ self.ways.mT).view(-1, *self.input)

    def encode(self, inputs: Tensor) -> Tensor:
        """The coordinates A⁻¹(x − μ) of normalised images."""
        return (inputs.flatten(1) - self.mean) @ self.back.mT


def public_gaussian(observation: Observation) -> Gaussian:
    """The Gaussian of this server's n public images; it serves as the ``decode`` of an optimisation.

    Their covariance is shrunk towards a multiple of I by 1/(n + 1): what n images lack is not impossible.
    """
    observation.require(Knows.PUBLIC_DATA)
    public, model = observation.public, observation.model
    size = torch.Size(model.input.shape).numel()
    if size > _MOST:
        raise NotApplicable(f"Images of {size} values are too large for a covariance; at most {_MOST}.")
    if public is None or len(public) < 2:
        raise BadInput("A covariance needs at least two public images.")
    inputs = model.normalise(public.images.to(model.mean)).flatten(1)
    key = hashlib.blake2b(inputs.cpu().contiguous().numpy().tobytes(), digest_size=16).hexdigest()
    if key not in _known:
        while len(_known) >= _KEPT:
            _known.pop(next(iter(_known)))
        _known[key] = _decomposed(inputs.double())
    mean, ways, back = (value.to(inputs) for value in _known[key])
    return Gaussian(images=observation.batch_size, input=model.input.shape, mean=mean, ways=ways, back=back)


def _decomposed(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """μ, A and A⁻¹; the columns of A are Σ's principal axes."""
    covariance, share = torch.cov(inputs.mT, correction=0), 1 / (len(inputs) + 1)
    even = covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
    values, axes = torch.linalg.eigh((1 - share) * covariance + share * even)
    roots = values.clamp_min(1e-12).sqrt()
    return inputs.mean(0), axes * roots, (axes / roots).mT


@final
@dataclass(frozen=True, slots=True)
class Improbability:
    """(x − μ)ᵀ Σ⁻¹ (x − μ), summed over the batch: how far from the public images', in deviations of theirs."""

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        known = public_gaussian(observation)

        def far(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            return known.encode(candidate.inputs).square().sum()

        return far

    def residuals(self, observation: Observation) -> Residuals:
        known = public_gaussian(observation)
        return lambda candidate, evaluation: {"improbability": known.encode(candidate.inputs)}
