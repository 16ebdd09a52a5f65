"""What a term is: something that looks at a candidate, and at its replay, and says how wrong it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from leakscope.types import Observation, Signal

__all__ = [
    "Bound",
    "Candidate",
    "Evaluation",
    "Residuals",
    "SumOfSquares",
    "Term",
    "Weighted",
    "always",
    "sees_peers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One member's guess: ``images`` (B, C, H, W) as pixels, ``inputs`` as the network sees them (normalised).

    ``peers`` are the other members' images, detached, for terms that pull a population together.
    """

    images: Tensor
    inputs: Tensor
    labels: Tensor
    peers: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The one replay of a step, for all terms: the signal, and what flowed into the modules a term watches."""

    signal: Signal
    activations: Mapping[str, Tensor] = field(default_factory=dict)


Bound = Callable[[Candidate, Evaluation], Tensor]


class Term(Protocol):
    """Something to minimise. ``bind`` looks at the observation once, before the loop, and raises if it does not fit."""

    def bind(self, observation: Observation) -> Bound:
        """The term as a function of a candidate and its replay, returning a scalar."""
        ...

    def watches(self, observation: Observation) -> tuple[str, ...]:
        """Names of the modules whose input this term needs; the engine opens and closes the hooks."""
        ...


Residuals = Callable[[Candidate, Evaluation], Mapping[str, Tensor]]


@runtime_checkable
class SumOfSquares(Protocol):
    """A term that may be Σ‖r‖², as second-order solvers need it."""

    def residuals(self, observation: Observation) -> Residuals:
        """r by the names of what is matched, differentiable; raises ``NotApplicable`` where the term is no such sum."""
        ...


def sees_peers(term: Term) -> bool:
    """Whether a term looks at the other members, which then run in lockstep: it says so in ``sees_peers``."""
    return bool(getattr(term, "sees_peers", False))


def always(progress: float) -> float:
    """A term's schedule that never changes: 1 at every share ``progress`` ∈ [0, 1) of the run."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """A term with its weight and a schedule that scales the weight over the run."""

    term: Term
    weight: float = 1.0
    schedule: Callable[[float], float] = always
