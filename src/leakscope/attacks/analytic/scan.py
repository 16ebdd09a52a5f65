"""Every closed form on one observation, in seconds: which applied, which refused and why, what came back.

An audit begins here: whatever algebra settles needs no optimisation, and each closed form checks itself without the
truth. The closed forms are the attacks registered from this room; there is no list to keep.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

import torch

from leakscope.attacks.registry import ATTACKS, attack
from leakscope.errors import NotApplicable
from leakscope.random import fork
from leakscope.types import Callback, Observation, Reconstruction

__all__ = ["ScanResult", "Tried", "analytic_scan", "closed_forms"]

_ROOM = __name__.rpartition(".")[0]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One closed form: its reconstruction, or why it refused."""

    name: str
    reconstruction: Reconstruction | None
    refused: str | None
    seconds: float

    @property
    def applied(self) -> bool:
        return self.reconstruction is not None

    @property
    def energy(self) -> float:
        """What its own check leaves unexplained; infinite where it refused."""
        return float("inf") if self.reconstruction is None else self.reconstruction.energy

    def __str__(self) -> str:
        if self.reconstruction is None:
            return f"{self.name}: refused: {self.refused}"
        return f"{self.name}: applied, self-check {self.energy:.1e}. {self.reconstruction.outcome.message}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """All closed forms in the order of their names."""

    tried: tuple[Tried, ...]

    @property
    def applied(self) -> tuple[Tried, ...]:
        return tuple(one for one in self.tried if one.applied)

    @property
    def refused(self) -> tuple[Tried, ...]:
        return tuple(one for one in self.tried if not one.applied)

    @property
    def best(self) -> Tried | None:
        """Of those that applied, the one whose own check leaves least unexplained; ``None`` if all refused.

        The choice never sees the truth: ``energy`` is what a closed form finds out by itself.
        """
        return min(self.applied, key=lambda one: one.energy, default=None)

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.tried)

    def __getitem__(self, name: str) -> Tried:
        return next(one for one in self.tried if one.name == name)

    def __str__(self) -> str:
        return "\n".join(map(str, self.tried))


def closed_forms() -> tuple[str, ...]:
    """The names of the attacks that are registered from this room."""
    return tuple(name for name in ATTACKS if ATTACKS[name].value.__module__.startswith(f"{_ROOM}."))


def analytic_scan(
    observation: Observation, *, generator: torch.Generator | None = None, callback: Callback | None = None
) -> ScanResult:
    """Try every closed form on ``observation``.

    A refusal is a result; any other exception is a bug and is raised. ``generator`` feeds those that draw random
    numbers (none of the single-image forms does); without one, a fixed seed is used.
    """
    generator = generator or torch.Generator().manual_seed(0)
    tried: list[Tried] = []
    for name in closed_forms():
        began = time.perf_counter()
        found, reason = None, None
        try:
            found = attack(name)(observation, generator=fork(generator, f"scan/{name}"), callback=callback)
        except NotApplicable as refusal:
            reason = str(refusal)
        seconds = time.perf_counter() - began
        tried.append(Tried(name=name, reconstruction=found, refused=reason, seconds=seconds))
    return ScanResult(tried=tuple(tried))
