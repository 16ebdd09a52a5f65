"""Starts that come from another attack: what it brings back is where an optimisation begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from leakscope.attacks.registry import attack
from leakscope.errors import BadInput
from leakscope.random import fork
from leakscope.types import Attack, Observation

__all__ = ["FromAttack", "from_attack"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FromAttack:
    """An initialiser that runs ``attack`` on the observation first: an inverter's picture in place of noise.

    ``noise``: N(0, noise²) is added, in normalised units, so that several restarts begin at different places.
    """

    attack: Attack
    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise < float("inf"):
            raise BadInput(f"noise is {self.noise}; it must be 0 or more.")

    def start(self, observation: Observation, labels: Tensor | None, generator: torch.Generator) -> Tensor:
        """Normalised images (B, C, H, W), in the order of these labels where they tell the images apart."""
        found = self.attack(observation, generator=fork(generator, "attack"))
        images = found.images if labels is None else found.images[_order(found.labels.tolist(), labels.tolist())]
        start = observation.model.normalise(images.to(observation.model.mean))
        if not self.noise:
            return start
        return start + self.noise * torch.randn(start.shape, generator=fork(generator, "noise")).to(start)


def from_attack(first: str | Attack, /, *, noise: float = 0.0, **options: object) -> FromAttack:
    """``init=from_attack("git-coarse", pairs=1000)``: any registered attack with its options, or any configured one."""
    if isinstance(first, str):
        return FromAttack(attack=attack(first, **options), noise=noise)
    if options:
        raise BadInput("Options go with the name of an attack; this one is configured already.")
    return FromAttack(attack=first, noise=noise)


def _order(have: list[int], want: list[int]) -> list[int]:
    """Which image goes where: each place takes an unused image of its label, and what is left over fills the rest."""
    free = list(range(len(have)))
    placed: list[int | None] = []
    for label in want:
        place = next((index for index in free if have[index] == label), None)
        placed.append(place)
        if place is not None:
            free.remove(place)
    return [free.pop(0) if place is None else place for place in placed]
