"""An optimisation attack as a value: terms, and the parts of the loop that minimises them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

import torch

from leakscope.attacks.decoders import Decode
from leakscope.attacks.labels import LabelSource, known_or_recovered
from leakscope.attacks.parts import (
    Filter,
    Initialiser,
    OptimiserSpec,
    Projection,
    Schedule,
    Start,
    Transform,
    adam,
    constant,
    normal,
)
from leakscope.attacks.second_order import LevenbergMarquardt
from leakscope.attacks.terms import Weighted
from leakscope.attacks.views import AsItIs, View
from leakscope.errors import BadInput
from leakscope.types import Callback, Observation, Reconstruction

__all__ = ["Checkpoint", "Optimisation", "Stop"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When to stop before the last step.

    ``seconds``: the budget of the whole attack. ``target``: a loss low enough. ``patience``: steps without the best
    loss falling by more than a ``tolerance`` share of itself.
    """

    seconds: float | None = None
    target: float | None = None
    patience: int | None = None
    tolerance: float = 1e-4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a run keeps its state, and how many seconds of work a kill may cost. The same run resumes from it."""

    folder: Path
    every: float = 10.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """Minimise Σ weight · term over images (and labels), from ``population`` starts; keep the lowest loss *measured*.

    ``gradient``: ``"exact"`` (double backward), ``"fast"`` (one-sided difference in the weights; checked against the
    exact one at the start, which takes over if they disagree), or ``"auto"``: fast for first-order optimisers.
    ``optimiser``: one of ``torch.optim``, by a value that describes it, or :class:`LevenbergMarquardt`.
    ``decode``: search the coordinates of a decoder made for the observation (a confined space, a generator) in place of
    pixels; ``init`` then draws coordinates (a picture is encoded), and ``project`` acts on the pictures they decode to.
    ``filter``: smooth the candidate once in so many steps, before it is projected.
    ``view``: what the loop is shown of the observation, for attacks that take it for something simpler than it is.
    ``noise``: after every step, Gaussian noise of this share of the learning rate is added to the leaf (GradInversion).
    ``workers``: processes to spread restarts over; ``checkpoint`` and ``workers`` do not belong to the method. Restarts
    that see one another (:class:`~leakscope.attacks.terms.group.GroupConsistency`) keep step, whoever runs them: each
    sees the others as they stood before the step.

    Losses under different weights cannot be compared: when a term's schedule changes, the lowest loss counts anew.
    """

    terms: tuple[Weighted, ...]
    steps: int
    labels: LabelSource = known_or_recovered
    init: Initialiser | Start = normal
    optimiser: OptimiserSpec | LevenbergMarquardt = field(default_factory=lambda: adam(0.1))
    schedule: Schedule = constant
    transforms: tuple[Transform, ...] = ()
    noise: float = 0.0
    project: Projection | None = None
    filter: Filter | None = None
    decode: Decode | None = None
    population: int = 1
    stop: Stop = field(default_factory=Stop)
    gradient: Literal["auto", "exact", "fast"] = "auto"
    view: View = field(default_factory=AsItIs)
    workers: int = 1
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("population", self.population), ("workers", self.workers)):
            if value < 1:
                raise BadInput(f"{name} is {value}; it must be at least 1.")
        if self.gradient not in ("auto", "exact", "fast"):
            raise BadInput(f"gradient is '{self.gradient}'; accepted: 'auto', 'exact' or 'fast'.")
        if not 0 <= self.noise < math.inf:
            raise BadInput(f"noise is {self.noise}; it must be a share of the learning rate, 0 or more.")
        if isinstance(self.optimiser, LevenbergMarquardt):
            idle = (self.transforms != (), self.schedule is not constant, self.noise != 0, self.gradient == "fast")
            named = ("transforms", "schedule", "noise", "gradient='fast'")
            if any(idle):
                given = ", ".join(name for name, set_ in zip(named, idle, strict=True) if set_)
                raise BadInput(f"Levenberg–Marquardt takes no gradient steps: {given} would do nothing. Leave it out.")
        if not self.terms:
            raise BadInput("There is nothing to minimise: at least one term is needed.")

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        """Attack ``observation``. A Ctrl-C ends the run early and keeps what it has found."""
        from leakscope.attacks.population import run  # the loop needs this type; this type only starts the loop

        found = run(self, self.view.see(observation), generator=generator, callback=callback)
        return self.view.collect(observation, found)
