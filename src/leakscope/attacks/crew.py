"""Members that advance in lockstep: the loop's view of them, whether they live in this process or in others."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import torch
from torch import Tensor

from leakscope.attacks.differentiate import LossProtocol, Problem, agreement
from leakscope.attacks.member import Member
from leakscope.attacks.micro_batches import ways
from leakscope.attacks.optimisation import Optimisation
from leakscope.types import Observation, Outcome

__all__ = ["Choice", "Crew", "Found", "LocalCrew", "Sights", "Stand"]

log = logging.getLogger(__name__)

AGREE: Final = 0.02
"""The largest relative error of the fast gradient, measured at the start, with which a run goes on using it."""

Choice = tuple[str, float | None]
"""Which gradient is used, and the fast one's relative error where it was measured."""

Sights = Mapping[int, Tensor]
"""What each member shows the others: its images, detached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where a member stands after a step. ``images`` and ``labels`` of its best point can be had in its own process."""

    index: int
    loss: float
    best: float
    ended: bool
    images: Callable[[], Tensor] | None = None
    labels: Callable[[], Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one member has at the end; ``outcome`` is ``None`` where the loop ended before it did."""

    index: int
    images: Tensor
    labels: Tensor
    energy: float
    outcome: Outcome | None
    trace: tuple[float, ...]
    label_source: str


class Crew(Protocol):
    """Some members, advanced together. A step shows each of them the others as they stood before it."""

    @property
    def alive(self) -> bool:
        """Whether any member has not ended."""
        ...

    def choose(self) -> Choice:
        """Which gradient to use here."""
        ...

    def start(self, gradient: str) -> None:
        """Use this gradient from now on."""
        ...

    def advance(self, step: int) -> Iterator[Stand]:
        """One step of every member that has not ended."""
        ...

    def state(self) -> list[dict[str, Any]]:
        """Every member's state, for a checkpoint."""
        ...

    def restore(self, states: Sequence[dict[str, Any]]) -> None: ...

    def found(self) -> list[Found]: ...

    def close(self) -> None: ...


@final
class LocalCrew:
    """Members of this process, one after another within a step."""

    def __init__(
        self, attack: Optimisation, observation: Observation, indices: Sequence[int], generator: torch.Generator
    ) -> None:
        self._attack = attack
        self._problem = Problem.of(observation, attack.terms)
        self._ways = ways(observation)
        self._members = [Member(index, attack, observation, generator) for index in indices]
        self._differentiate = self._ways["exact"]

    @property
    def alive(self) -> bool:
        return any(member.outcome is None for member in self._members)

    def choose(self) -> Choice:
        attack, problem, member = self._attack, self._problem, self._members[0]
        possible = isinstance(problem.observation.protocol, LossProtocol)
        wanted = attack.gradient == "fast" or (attack.gradient == "auto" and attack.optimiser.first_order)
        if not (possible and wanted):
            return "exact", None
        _, slow = self._ways["exact"](problem, member.leaves, member.candidate, 0.0)
        error = math.inf
        for name, way in self._ways.items():
            if name == "exact":
                continue
            _, quick = way(problem, member.leaves, member.candidate, 0.0)
            error = agreement(quick, slow)
            if error <= AGREE:
                return name, error
        log.warning("The fast gradient is off by %.2g here: this run uses the exact one.", error)
        return "exact", error

    def start(self, gradient: str) -> None:
        self._differentiate = self._ways[gradient]

    def sights(self) -> dict[int, Tensor]:
        """Each member's images, detached."""
        return {member.index: member.candidate().images.detach().clone() for member in self._members}

    def advance(self, step: int, sights: Sights | None = None) -> Iterator[Stand]:
        """``sights`` are those of every member, this process's or not; by default there are only these."""
        if sights is None:
            sights = self.sights() if len(self._members) > 1 else {}
        for member in self._members:
            if member.outcome is None:
                peers = tuple(images for index, images in sorted(sights.items()) if index != member.index)
                member.advance(step, self._problem, self._differentiate, peers)
                yield Stand(
                    index=member.index,
                    loss=member.trace[-1],
                    best=member.best,
                    ended=member.outcome is not None,
                    images=member.images,
                    labels=member.labels,
                )

    def state(self) -> list[dict[str, Any]]:
        return [member.state() for member in self._members]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        for member, kept in zip(self._members, states, strict=True):
            member.restore(kept)

    def found(self) -> list[Found]:
        return [
            Found(
                index=member.index,
                images=member.images(),
                labels=member.labels(),
                energy=member.best,
                outcome=member.outcome,
                trace=tuple(member.trace),
                label_source=member.label_source,
            )
            for member in self._members
        ]

    def close(self) -> None:
        """Nothing of this process has to be ended."""
