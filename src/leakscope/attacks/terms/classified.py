"""The label, and nothing else of the signal: what the model itself takes for its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.types import Observation

__all__ = ["Classified"]


@final
@dataclass(frozen=True, slots=True)
class Classified:
    """−log p_y(x), the mean over images: the model, in evaluation mode, should see the label there (DeepInversion)."""

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        model = observation.model

        def surprise(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            with model.mode(training=False):
                return model.loss(model(candidate.images), candidate.labels)

        return surprise
