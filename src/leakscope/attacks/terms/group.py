"""Group consistency: runs from different starts, drawn to what they agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from leakscope.attacks.registration import Alignment, consensus
from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.types import Observation

__all__ = ["GroupConsistency"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConsistency:
    """R_reg = ‖x − x_C‖₂, x_C the mean over the population after registration (GradViT, Eqs. 9–10; GradInversion).

    x_C is a constant in the step: a member moves towards the group, it does not drag the group along. Members that are
    not finite are left out; with no peers the term is zero.
    """

    sees_peers: ClassVar[bool] = True

    align: Alignment = "flow"

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        model = observation.model

        def distance(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            peers = [peer for peer in candidate.peers if bool(torch.isfinite(peer).all())]
            own = candidate.images.detach()
            if not peers or not bool(torch.isfinite(own).all()):
                return candidate.inputs.sum() * 0
            return (candidate.inputs - model.normalise(consensus([own, *peers], self.align))).norm()

        return distance
