"""Patch joints: a transformer sees patches apart from one another, a picture does not stop at their edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.errors import NotApplicable
from leakscope.functional import priors
from leakscope.types import Observation

__all__ = ["PatchJoints"]


@final
@dataclass(frozen=True, slots=True)
class PatchJoints:
    """R_patch = Σ_k ‖x[pk, :] − x[pk−1, :]‖₂ + Σ_k ‖x[:, pk] − x[:, pk−1]‖₂ (GradViT, Eq. 8).

    Both sides of a joint move. The patches are those of the model's patch embedding; a model without one is refused.
    """

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        embedding = observation.model.anatomy.patch_embedding
        if embedding is None:
            raise NotApplicable(
                f"{observation.model.name} has no patch embedding that is known, so there are no joints to smooth."
            )
        patch = embedding.patch

        def jumps(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            return priors.patch_joints(candidate.inputs, patch)

        return jumps
