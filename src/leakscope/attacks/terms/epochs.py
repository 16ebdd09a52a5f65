"""Epochs: what a client saw in one epoch it saw in every other, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.client.per_epoch import PerEpoch
from leakscope.functional.matching import match
from leakscope.types import Observation

__all__ = ["EpochInvariance"]


@final
@dataclass(frozen=True, slots=True)
class EpochInvariance:
    """Mean over epochs of ‖x_e − x̄‖² / numel, x̄ the mean over epochs, the images of an epoch in an order of its own.

    Dimitrov et al. (2022) tie epochs by a pooled feature, the same for any order. Here each epoch's images are paired
    with the first's (least total squared error, anew at every step) and drawn to the mean of their copies: it does not
    depend on the order either, and holds the images themselves together. Zero for an observation with one epoch.
    """

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        copies = observation.protocol

        def spread(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            if not isinstance(copies, PerEpoch) or copies.epochs == 1:
                return candidate.inputs.sum() * 0
            first, *rest = candidate.inputs.split(copies.count)
            paired = torch.stack([first, *(copy[match(copy, first).to(copy.device)] for copy in rest)])
            return (paired - paired.mean(0)).square().mean()

        return spread
