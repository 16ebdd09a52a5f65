"""The one optimisation loop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from leakscope.attacks.differentiate import Differentiate, LossProtocol, Problem, agreement
from leakscope.attacks.member import Member
from leakscope.attacks.micro_batches import ways
from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.settings import fingerprint
from leakscope.errors import BadInput
from leakscope.types import Callback, Observation, Outcome, Progress, Status

__all__ = ["MemberResult", "run_together"]

log = logging.getLogger(__name__)

AGREE: Final = 0.02
"""The largest relative error of the fast gradient, measured at the start, with which a run goes on using it."""


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
) -> list[MemberResult]:
    """Run these members in lockstep, each seeing the others, within ``seconds``; resume from their checkpoint."""
    problem = Problem.of(observation, attack.terms)
    members = [Member(index, attack, observation, generator) for index in indices]
    store = _Store.of(attack, observation, indices, generator)
    saved = store.load() if store else None
    step, spent = 0, 0.0
    if saved is not None:
        step, spent, gradient, error = saved["step"], saved["seconds"], saved["gradient"], saved["error"]
        for member, kept in zip(members, saved["members"], strict=True):
            member.restore(kept)
    else:
        gradient, error = _choose(attack, problem, members[0])
    differentiate: Differentiate = ways(observation)[gradient]
    started = saved_at = time.monotonic()

    def elapsed() -> float:
        return spent + time.monotonic() - started

    def state() -> dict[str, Any]:
        return {
            "step": step,
            "seconds": elapsed(),
            "gradient": gradient,
            "error": error,
            "members": [member.state() for member in members],
        }

    ending = Outcome(status=Status.FINISHED, message=f"All {attack.steps} steps done.")
    try:
        while step < attack.steps and any(member.outcome is None for member in members):
            if seconds is not None and elapsed() >= seconds:
                ending = Outcome(status=Status.OUT_OF_TIME, message=f"{seconds:.0f} s were up at step {step}.")
                break
            for member in members:
                if member.outcome is not None:
                    continue
                peers = tuple(m.candidate().images.detach() for m in members if m is not member)
                member.advance(step, problem, differentiate, peers)
                if callback is not None:
                    callback(_progress(attack, member, step, elapsed()))
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
            index=member.index,
            images=member.images(),
            labels=member.labels(),
            energy=member.best,
            outcome=member.outcome or ending,
            trace=tuple(member.trace),
            seconds=elapsed() / len(members),
            evidence=evidence | {"labels": member.label_source},
        )
        for member in members
    ]


def _choose(attack: Optimisation, problem: Problem, member: Member) -> tuple[str, float | None]:
    """Which gradient to use, and the fast one's relative error where it was measured."""
    possible = isinstance(problem.observation.protocol, LossProtocol)
    wanted = attack.gradient == "fast" or (attack.gradient == "auto" and attack.optimiser.first_order)
    if not (possible and wanted):
        return "exact", None
    by = ways(problem.observation)
    _, quick = by["fast"](problem, member.leaves, member.candidate, 0.0)
    _, slow = by["exact"](problem, member.leaves, member.candidate, 0.0)
    error = agreement(quick, slow)
    if error <= AGREE:
        return "fast", error
    log.warning("The fast gradient is off by %.2g here: this run uses the exact one.", error)
    return "exact", error


def _progress(attack: Optimisation, member: Member, step: int, seconds: float) -> Progress:
    return Progress(
        step=step + 1,
        steps=attack.steps,
        loss=member.trace[-1],
        best=member.best,
        seconds=seconds,
        restart=member.index,
        restarts=attack.population,
        images=member.images,
        labels=member.labels,
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
