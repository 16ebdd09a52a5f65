"""Matching: the candidate's replay should look like what the client sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.errors import NotApplicable
from leakscope.functional import distances
from leakscope.types import Observation

__all__ = ["Match", "TagDistance"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TagDistance:
    """:func:`leakscope.functional.distances.tag` with its two constants."""

    alpha: float
    decay: float

    def __call__(self, replayed: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
        return distances.tag(replayed, observed, alpha=self.alpha, decay=self.decay)


@final
@dataclass(frozen=True, slots=True)
class Match:
    """D(g(x), g*): a distance between the replayed and the observed gradient, tensor by tensor, by name."""

    distance: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        gradients = observation.gradients
        if not gradients:
            raise NotApplicable("There is no parameter's gradient in the signal to match.")
        names, observed = tuple(gradients), tuple(gradients.values())

        def mismatch(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            return self.distance([evaluation.signal[name] for name in names], observed)

        return mismatch
