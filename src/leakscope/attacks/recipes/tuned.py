"""Inverting Gradients with its settings chosen on the spot, by the attacker's own measure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast, final

import torch

from leakscope.attacks.decoders import SEARCHES, Search
from leakscope.attacks.explain import matching_loss
from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.recipes.inverting_gradients import inverting_gradients
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.errors import BadInput
from leakscope.random import fork
from leakscope.types import Callback, Observation, Progress, Reconstruction

__all__ = ["Tuned"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """``trials`` short runs that share ``steps`` steps, each with its own learning rate, weight of total variation and
    space to search; then ``steps`` more with those that explain the signal best. Nothing but the observation takes part
    in the choice.

    The first trial has the recipe's own settings, the second the same by frequency. ``leakscope tune`` searches harder
    (Optuna, many machines).
    """

    steps: int
    trials: int

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("trials", self.trials)):
            if value < 1:
                raise BadInput(f"{name} is {value}; it must be at least 1.")

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        judge = matching_loss(observation, inverting_gradients())
        trials = min(self.trials, self.steps)
        each = self.steps // trials
        found: list[tuple[float, float, float, Search]] = []
        for trial in range(trials):
            lr, tv, search = self._settings(fork(generator, f"trial/{trial}/settings"), trial)
            came = _attack(each, lr, tv, search)(
                observation,
                generator=fork(generator, f"trial/{trial}"),
                callback=_shifted(callback, trial * each, 2 * self.steps),
            )
            value = judge(came.images, came.labels)
            found.append((value if math.isfinite(value) else math.inf, lr, tv, search))
        value, lr, tv, search = min(found)
        last = _attack(self.steps, lr, tv, search)(
            observation,
            generator=fork(generator, "last"),
            callback=_shifted(callback, self.steps, 2 * self.steps),
        )
        chosen = {"lr": lr, "tv": tv, "search": search, "chosen_at": value}
        evidence = {**last.evidence, "trials": [list(row) for row in found], **chosen}
        return replace(last, evidence=evidence, steps=trials * each + last.steps)

    def _settings(self, generator: torch.Generator, trial: int) -> tuple[float, float, Search]:
        if trial < 2:
            return 0.1, 1e-2, "frequency" if trial else "pixels"
        lr, tv, where = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
        return 10 ** (-2 + 2 * lr), 10 ** (-6 + 5 * tv), "frequency" if where < 0.5 else "pixels"


def _attack(steps: int, lr: float, tv: float, search: Search) -> Optimisation:
    made = cast(Optimisation, inverting_gradients(steps=steps, lr=lr, tv=tv))
    return replace(made, decode=SEARCHES[search])


def _shifted(callback: Callback | None, offset: int, total: int) -> Callback | None:
    """The same callback, told of this run as a part of the whole."""
    if callback is None:
        return None

    def tell(progress: Progress) -> None:
        callback(replace(progress, step=offset + progress.step, steps=total))

    return tell


@register_attack(
    "tuned",
    cites="geiping2020",
    leaky=Leaky(
        model={"name": "leakscope:mlp?hidden=64&activation=tanh", "image_size": 8},
        options={"steps": 240, "trials": 3},
        psnr=20.0,
    ),
)
def tuned(*, steps: int = 1000, trials: int = 8) -> Tuned:
    """Inverting Gradients; rate, total variation and what it searches are chosen by the loss on short runs first."""
    return Tuned(steps=steps, trials=trials)
