"""Several rounds of the same images, as one signal: noise averages out, and masks fill up.

The plainest thing a patient server can do. A server that knows the defence pools the rounds as that defence asks for
(:meth:`leakscope.types.Defence.pool`); one that does not takes the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from leakscope.types import Attack, Callback, Defence, Observation, Reconstruction, Signal

__all__ = ["Averaged", "pooled"]


class _Unknown(Defence):
    """A defence the server knows nothing of."""


def pooled(observation: Observation) -> Observation:
    """The same server with the signals of all rounds in one, and its defences as weak as that makes them.

    The last defence says what one round's entry is worth, since it was the last to touch it. Rounds that are known to
    have trained on different images (mixed, or among others) are left out.
    """
    if not observation.rounds:
        return observation
    if not all(defence.same_images for defence in observation.defences):
        return replace(observation, rounds=())
    signals: list[Signal] = [observation.signal, *observation.rounds]
    last = observation.defences[-1] if observation.defences else _Unknown()
    signal, _ = last.pool(signals)
    left = tuple(defence.pool(signals)[1] for defence in observation.defences)
    return replace(observation, signal=signal, rounds=(), defences=left)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """``attack`` on the pooled rounds. With a single round it is ``attack`` itself."""

    attack: Attack

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        found = self.attack(pooled(observation), generator=generator, callback=callback)
        return replace(found, evidence={**found.evidence, "rounds": 1 + len(observation.rounds)})
