"""The exchangeable parts of an optimisation attack: where it starts, how it moves, where it may go.

All are plain functions or frozen values, so that a whole attack can be compared, printed and sent to a process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.functional.filters import median_filter
from leakscope.models import VisionModel
from leakscope.types import Observation

__all__ = [
    "DecayAt",
    "EvenGrey",
    "Filter",
    "OptimiserSpec",
    "Start",
    "adam",
    "adamw",
    "box",
    "constant",
    "cosine_decay",
    "decay_at",
    "grey",
    "lbfgs",
    "median",
    "normal",
    "sign",
    "uniform",
]

# --- Initialisers: (shape, generator) -> normalised inputs ------------------------------------------------------------

Initialiser = Callable[[tuple[int, ...], torch.Generator], Tensor]


@runtime_checkable
class Start(Protocol):
    """An initialiser that gives pictures, and may look at the observation; a decoder takes their coordinates."""

    def start(self, observation: Observation, labels: Tensor | None, generator: torch.Generator) -> Tensor:
        """Normalised images (B, C, H, W), in the order of these labels where it can tell them apart."""
        ...


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """N(0, 1) in normalised units (DLG; Inverting Gradients)."""
    return torch.randn(shape, generator=generator)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """U(−1, 1) in normalised units."""
    return torch.rand(shape, generator=generator) * 2 - 1


def grey(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """The mean pixel, everywhere."""
    return torch.zeros(shape)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EvenGrey:
    """Pixels of one ``level``, disturbed by N(0, ``noise``²): nowhere near a picture, and not far from any."""

    level: float = 0.5
    noise: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.level <= 1:
            raise BadInput(f"The level of grey is {self.level}; pixels lie in [0, 1].")

    def start(self, observation: Observation, labels: Tensor | None, generator: torch.Generator) -> Tensor:
        model = observation.model
        noise = torch.randn((observation.batch_size, *observation.input.shape), generator=generator)
        return model.normalise((self.level + self.noise * noise).to(model.mean))


# --- Optimisers: torch.optim, described by a value --------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserSpec:
    """Which torch optimiser, with which learning rate and options. ``first_order``: it tolerates a gradient known to
    about four digits; second-order ones need the exact gradient."""

    name: str
    lr: float
    first_order: bool
    options: Mapping[str, object] = field(default_factory=dict)

    def build(self, leaves: list[Tensor]) -> torch.optim.Optimizer:
        return _OPTIMISERS[self.name](leaves, lr=self.lr, **self.options)


_OPTIMISERS: Final[Mapping[str, Callable[..., torch.optim.Optimizer]]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "lbfgs": torch.optim.LBFGS,
}


def adam(lr: float) -> OptimiserSpec:
    return OptimiserSpec(name="adam", lr=lr, first_order=True)


def adamw(lr: float, *, weight_decay: float = 0.01) -> OptimiserSpec:
    return OptimiserSpec(name="adamw", lr=lr, first_order=True, options={"weight_decay": weight_decay})


def lbfgs(lr: float = 1.0, *, inner: int = 20, history: int = 100, line_search: bool = False) -> OptimiserSpec:
    """L-BFGS; one engine step makes up to ``inner`` iterations, each with at least one replay."""
    return OptimiserSpec(
        name="lbfgs",
        lr=lr,
        first_order=False,
        options={
            "max_iter": inner,
            "history_size": history,
            "line_search_fn": "strong_wolfe" if line_search else None,
            # Gradient matching lives many orders below torch's default tolerances.
            "tolerance_grad": 1e-14,
            "tolerance_change": 1e-18,
        },
    )


# --- Learning-rate schedules: share of the run in [0, 1) -> factor ----------------------------------------------------

Schedule = Callable[[float], float]


def constant(progress: float) -> float:
    return 1.0


def cosine_decay(progress: float) -> float:
    """½ (1 + cos π·progress)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


@final
@dataclass(frozen=True, slots=True)
class DecayAt:
    """The learning rate falls to a tenth at each of these shares of the run."""

    shares: tuple[float, ...]

    def __call__(self, progress: float) -> float:
        return 0.1 ** sum(progress >= share for share in self.shares)


def decay_at(*shares: float) -> DecayAt:
    return DecayAt(shares)


# --- Gradient transforms: gradient -> gradient ------------------------------------------------------------------------

Transform = Callable[[Tensor], Tensor]


def sign(gradient: Tensor) -> Tensor:
    """Only the direction of each pixel's change counts (Inverting Gradients)."""
    return gradient.sign()


# --- Projections: (inputs, model) -> inputs, after every step ---------------------------------------------------------

Projection = Callable[[Tensor, VisionModel], Tensor]


def box(inputs: Tensor, model: VisionModel) -> Tensor:
    """Into the valid pixel range: normalised inputs whose pixels lie in [0, 1]."""
    low, high = -model.mean / model.std, (1 - model.mean) / model.std
    return torch.minimum(torch.maximum(inputs, low), high)


def median(inputs: Tensor, model: VisionModel) -> Tensor:
    """A 3×3 median: what single pixels of the search have left behind goes."""
    return median_filter(inputs)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A projection that is applied only once in ``every`` steps."""

    every: int
    apply: Projection = median

    def __post_init__(self) -> None:
        if self.every < 1:
            raise BadInput(f"A filter is applied every {self.every} steps; that must be at least 1.")
