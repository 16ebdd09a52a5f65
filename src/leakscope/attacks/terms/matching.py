"""Matching: the candidate's replay should look like what the client sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation, Residuals
from leakscope.errors import BadInput, NotApplicable
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
    ``largest``: only so many tensors, those of the largest observed norm, are compared (Valadi et al. 2025).
    """

    distance: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
    largest: int | None = None

    def __post_init__(self) -> None:
        if self.largest is not None and self.largest < 1:
            raise BadInput(f"largest is {self.largest}; at least 1 tensor must be matched, or None for all of them.")

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        sent = self._sent(observation)
        names, observed = tuple(sent), tuple(sent.values())

        def mismatch(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            replayed = as_seen(observation, evaluation.signal)
            return self.distance([replayed[name] for name in names], observed)

        return mismatch

    def residuals(self, observation: Observation) -> Residuals:
        """The gaps g(x) − g* whose squares add up to the distance, tensor by tensor."""
        differences = distances.RESIDUALS.get(self.distance)
        if differences is None:
            name = getattr(self.distance, "__name__", type(self.distance).__name__)
            known = ", ".join(sorted(one.__name__ for one in distances.RESIDUALS))
            raise NotApplicable(f"The distance '{name}' is not a sum of squares; these are: {known}.")
        sent = self._sent(observation)
        names, observed = tuple(sent), tuple(sent.values())

        def gaps(candidate: Candidate, evaluation: Evaluation) -> dict[str, Tensor]:
            replayed = as_seen(observation, evaluation.signal)
            return dict(zip(names, differences([replayed[name] for name in names], observed), strict=True))

        return gaps

    def _sent(self, observation: Observation) -> Signal:
        """What is matched, by name."""
        modules = {name for name, _ in observation.model.named_modules()}
        features = {name: value for name, value in observation.signal.items() if name in modules}
        sent = observation.gradients or features
        if not sent:
            raise NotApplicable("There is no parameter's gradient in the signal to match, nor any features.")
        if self.largest is not None:
            ranked = sorted(sent, key=lambda name: float(sent[name].norm()), reverse=True)[: self.largest]
            sent = {name: value for name, value in sent.items() if name in ranked}
        return sent
