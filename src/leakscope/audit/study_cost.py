"""How long a study will take, from two measured steps of each kind of point, before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from leakscope.attacks import Optimisation
from leakscope.attacks.settings import settings
from leakscope.audit.record import RECORD
from leakscope.audit.run import Case
from leakscope.audit.study import Point, Setup, Study
from leakscope.errors import LeakscopeError
from leakscope.random import fork

__all__ = ["estimate_study"]


def estimate_study(
    study: Study, setup: Setup, out: Path, *, stop: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Point, float | None]]:
    """Every point with its seconds: 0 where it has run already, ``None`` for a closed form, which is not tried out.

    Points that differ in nothing but what is not timed (a control and its attack) are measured once. An attack that
    refuses takes no time.
    """
    known: dict[str, float] = {}
    for point in study.make(setup):
        if stop():
            return
        attack = point.case.attack
        if (out / "points" / point.slug / RECORD).exists():
            yield point, 0.0
        elif not isinstance(attack, Optimisation):
            yield point, None
        else:
            kind = f"{point.case.model.name} {settings(point.case.client)} {settings(attack)}"
            if kind not in known:
                known[kind] = _measured(point.case, attack)
            yield point, known[kind]


def _measured(case: Case, attack: Optimisation) -> float:
    """What the attack takes: what comes before its first step, and all steps at the pace of the second."""
    times: list[float] = []
    began = time.monotonic()
    short = replace(attack, steps=min(3, attack.steps), population=1, workers=1, checkpoint=None)
    generator = fork(torch.Generator().manual_seed(case.seed), "estimate")
    try:
        short(case.observe(), generator=generator, callback=lambda _: times.append(time.monotonic()))
    except LeakscopeError:
        return 0.0
    whole = time.monotonic() - began
    if len(times) >= 2:
        whole += (attack.steps - len(times)) * (times[-1] - times[0]) / (len(times) - 1)
    return whole * attack.population
