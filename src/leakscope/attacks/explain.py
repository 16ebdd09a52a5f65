"""How well images explain a signal, on a scale that does not depend on an attack's settings."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.terms import Candidate, Evaluation, Match, Term
from leakscope.errors import BadInput
from leakscope.functional.distances import cosine
from leakscope.types import Attack, Observation

__all__ = ["Judge", "matching_loss"]

Judge = Callable[[Tensor, Tensor], float]
"""(images, labels) -> the value of a run that brings them back."""


def matching_loss(observation: Observation, attack: Attack) -> Judge:
    """The matching loss of images, by the first term of ``attack``; gradients' cosine distance if it has no terms.

    Total losses of different settings cannot be compared: a smaller weight on a prior makes them smaller whatever
    comes out. The matching term alone can.
    """
    term: Term = attack.terms[0].term if isinstance(attack, Optimisation) else Match(cosine)
    if term.watches(observation):
        raise BadInput("The first term of this attack looks into the model, so its loss is no matching loss alone.")
    bound = term.bind(observation)
    model, protocol = observation.model, observation.protocol

    def judge(images: Tensor, labels: Tensor) -> float:
        candidate = Candidate(images=images, inputs=model.normalise(images), labels=labels)
        signal = protocol.replay(model, images, labels)
        return float(bound(candidate, Evaluation(signal=signal)).detach())

    return judge
