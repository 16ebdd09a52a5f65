"""Schedules: share of the run in [0, 1) -> factor, for a term's weight or the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from leakscope.attacks.parts import cosine_decay
from leakscope.errors import BadInput

__all__ = ["GRADIENT", "IMAGE", "Switch", "WarmUp"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One factor until a share ``at`` of the run is done, another from there on."""

    before: float
    after: float
    at: float = 0.5

    def __call__(self, progress: float) -> float:
        return self.before if progress < self.at else self.after


GRADIENT = Switch(before=1.0, after=0.5)
"""Γ: α_grad for t ≤ T/2, ½ α_grad afterwards (GradViT, Eq. 5), as a factor of α_grad."""

IMAGE = Switch(before=0.0, after=1.0)
"""Υ: nothing for t ≤ T/2, α_image afterwards (GradViT, Eq. 6), as a factor of α_image."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """(t + 1)/``steps`` for the first ``steps`` of ``of`` steps t = 0, 1, …; then ``then`` over what is left."""

    steps: int
    of: int
    then: Callable[[float], float] = cosine_decay

    def __post_init__(self) -> None:
        if not 0 <= self.steps < self.of:
            raise BadInput(f"A warm-up of {self.steps} steps does not fit into a run of {self.of}.")

    def __call__(self, progress: float) -> float:
        step = round(progress * self.of)
        if step < self.steps:
            return (step + 1) / self.steps
        return self.then((step - self.steps) / (self.of - self.steps))
