"""Matching: the candidate's replay should look like what the client sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.errors import NotApplicable
from leakscope.functional import distances
from leakscope.types import Observation, Signal

__all__ = ["Match", "TagDistance", "as_seen"]


def as_seen(observation: Observation, replayed: Signal) -> Signal:
    """A replay as the defences that this server knows of would have let it through; the replay itself if it knows none.

    It makes every optimisation attack an adaptive one: masked where the client sent nothing, clipped as it clipped.
    """
    if not observation.defences:
        return replayed
    own = {name: replayed[name] for name, _ in observation.model.named_parameters() if name in replayed}
    for defence in observation.defences:
        own = defence.as_seen(own, observation.signal)
    return {**replayed, **own}


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
    """D(g(x), g*): a distance between the replayed and the observed gradient, tensor by tensor, by name.

    Of a client that sends features in place of gradients, the distance between those.

    Where the server knows the client's defences, the replay goes through them first (:func:`as_seen`).
    """

    distance: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        buffers = observation.buffers
        sent = observation.gradients or {n: v for n, v in observation.signal.items() if n not in buffers}  # features
        if not sent:
            raise NotApplicable("There is no parameter's gradient in the signal to match, nor any features.")
        names, observed = tuple(sent), tuple(sent.values())

        def mismatch(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            replayed = as_seen(observation, evaluation.signal)
            return self.distance([replayed[name] for name in names], observed)

        return mismatch
