"""The one optimisation loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakscope.attacks.crew import Crew, LocalCrew, Stand
from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.settings import fingerprint
from leakscope.errors import BadInput
from leakscope.types import Callback, Observation, Outcome, Progress, Status

__all__ = ["MemberResult", "run_together"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """What one restart brought back, and its share of the time, earlier sessions of a resumed run included."""

    index: int
    images: Tensor
    labels: Tensor
    energy: float
    outcome: Outcome
    trace: tuple[float, ...]
    seconds: float
    evidence: dict[str, object]


def run_together(
    attack: Optimisation,
    observation: Observation,
    indices: Sequence[int],
    *,
    generator: torch.Generator,
    callback: Callback | None,
    seconds: float | None,
    crew: Crew | None = None,
) -> list[MemberResult]:
    """Run these members in lockstep, each seeing the others, within ``seconds``; resume from their checkpoint.

    They live in this process, or wherever ``crew`` has them.
    """
    crew = crew or LocalCrew(attack, observation, indices, generator)
    store = _Store.of(attack, observation, indices, generator)
    saved = store.load() if store else None
    step, spent = 0, 0.0
    if saved is not None:
        step, spent, gradient, error = saved["step"], saved["seconds"], saved["gradient"], saved["error"]
        crew.restore(saved["members"])
    else:
        gradient, error = crew.choose()
    crew.start(gradient)
    started = saved_at = time.monotonic()

    def elapsed() -> float:
        return spent + time.monotonic() - started

    def state() -> dict[str, Any]:
        known = {"step": step, "seconds": elapsed(), "gradient": gradient, "error": error}
        return known | {"members": crew.state()}

    ending = Outcome(status=Status.FINISHED, message=f"All {attack.steps} steps done.")
    try:
        while step < attack.steps and crew.alive:
            if seconds is not None and elapsed() >= seconds:
                ending = Outcome(status=Status.OUT_OF_TIME, message=f"{seconds:.0f} s were up at step {step}.")
                break
            for stand in crew.advance(step):
                if callback is not None:
                    callback(_progress(attack, stand, step, elapsed()))
            step += 1
            if store and time.monotonic() - saved_at >= store.every:
                store.save(state())
                saved_at = time.monotonic()
    except KeyboardInterrupt:
        ending = Outcome(status=Status.INTERRUPTED, message=f"Stopped by hand at step {step}.")
    if store and ending.status is not Status.INTERRUPTED:  # an interrupt may fall in the middle of a step
        store.save(state())
    evidence: dict[str, object] = {"gradient": gradient, "gradient_error": error}
    return [
        MemberResult(
            index=found.index,
            images=found.images,
            labels=found.labels,
            energy=found.energy,
            outcome=found.outcome or ending,
            trace=found.trace,
            seconds=elapsed() / len(indices),
            evidence=evidence | {"labels": found.label_source},
        )
        for found in crew.found()
    ]


def _progress(attack: Optimisation, stand: Stand, step: int, seconds: float) -> Progress:
    return Progress(
        step=step + 1,
        steps=attack.steps,
        loss=stand.loss,
        best=stand.best,
        seconds=seconds,
        restart=stand.index,
        restarts=attack.population,
        images=stand.images,
        labels=stand.labels,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """One checkpoint file, replaced in one move, read without pickle, and only by the run that wrote it."""

    path: Path
    every: float
    key: str

    @staticmethod
    def of(
        attack: Optimisation, observation: Observation, indices: Sequence[int], generator: torch.Generator
    ) -> _Store | None:
        if attack.checkpoint is None:
            return None
        method = replace(attack, checkpoint=None, workers=1)
        name = "restart-" + "-".join(map(str, indices)) + ".pt"
        return _Store(
            path=attack.checkpoint.folder / name,
            every=attack.checkpoint.every,
            key=fingerprint(method, observation, generator),
        )

    def load(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        try:
            saved = torch.load(self.path, weights_only=True)
        except Exception as error:
            raise BadInput(
                f"The checkpoint {self.path} cannot be read ({error}). Delete it to start afresh."
            ) from error
        if saved["key"] != self.key:
            log.warning("%s belongs to another run: starting afresh.", self.path.name)
            return None
        return saved["state"]

    def save(self, state: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(f".{os.getpid()}.part")
        torch.save({"key": self.key, "state": state}, part)
        part.replace(self.path)
