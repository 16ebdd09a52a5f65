"""Statistics: what flows through the model's normalisation layers should look like training data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.errors import NotApplicable
from leakscope.types import Observation

__all__ = ["RunningStatistics"]

_BATCH_NORMS: Final = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


@final
@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """Σ_l ‖μ_l(x) − μ_l‖₂ + ‖σ²_l(x) − σ²_l‖₂ over the BatchNorm layers, towards the model's running statistics.

    (GradInversion's R_BN; Huang et al. 2021.) A model without BatchNorm, or whose statistics were never trained, is
    refused: there would be nothing to move towards.
    """

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return tuple(_targets(observation))

    def bind(self, observation: Observation) -> Bound:
        targets = _targets(observation)
        if not targets:
            raise NotApplicable(f"{observation.model.name} has no BatchNorm layer with running statistics.")
        if all(bool((mean == 0).all() and (var == 1).all()) for mean, var in targets.values()):
            raise NotApplicable(
                f"The running statistics of {observation.model.name} are untrained (all zeros and ones): they say "
                "nothing about images. Load trained weights, or leave this term out."
            )

        def mismatch(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            total = torch.zeros((), dtype=candidate.inputs.dtype, device=candidate.inputs.device)
            for name, (mean, var) in targets.items():
                features = evaluation.activations[name].transpose(0, 1).flatten(1)  # (channels, B·H·W)
                spread, centre = torch.var_mean(features, dim=1, correction=0)
                total = total + (centre - mean).norm() + (spread - var).norm()
            return total

        return mismatch


def _targets(observation: Observation) -> dict[str, tuple[Tensor, Tensor]]:
    return {
        name: (module.running_mean, module.running_var)
        for name, module in observation.model.named_modules()
        if isinstance(module, _BATCH_NORMS) and module.running_mean is not None and module.running_var is not None
    }
