"""Priors: what any image looks like. They act on normalised pixels, as the papers' weights assume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.functional import priors
from leakscope.types import Observation

__all__ = ["ImageNorm", "TotalVariation"]


@final
@dataclass(frozen=True, slots=True)
class TotalVariation:
    """Neighbouring pixels are alike: ``priors.total_variation`` (default) or ``priors.total_variation_l2``."""

    form: Callable[[Tensor], Tensor] = priors.total_variation

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        def roughness(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            return self.form(candidate.inputs)

        return roughness


@final
@dataclass(frozen=True, slots=True)
class ImageNorm:
    """Images are not extreme: the mean over images of ‖x‖₂."""

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        def size(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            return priors.l2_norm(candidate.inputs)

        return size
