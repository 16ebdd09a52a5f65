"""What a client's optimiser does with a gradient, as functions that can be differentiated, state included.

They agree with ``torch.optim`` (``foreach``, ``fused`` and the like change only how torch computes the same numbers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Protocol, final

import torch
from torch import Tensor

from leakscope.errors import BadInput

__all__ = ["Adam", "LocalOptimiser", "Sgd", "adamw"]

State = dict[str, Tensor]
"""The optimiser's memory, one tensor for each parameter and quantity, as ``momentum/conv1.weight``."""


class LocalOptimiser(Protocol):
    """θ, ∇L, state ↦ θ′, state′, by parameter name. What is not in the gradients stays as it is."""

    @property
    def lr(self) -> float: ...

    def start(self, parameters: Mapping[str, Tensor]) -> State:
        """The state before the first step."""
        ...

    def step(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: State, index: int
    ) -> tuple[dict[str, Tensor], State]:
        """Step number ``index``, counted from 0."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sgd:
    """g ← ∇L + λθ;  m ← μm + g;  θ ← θ − η m, or θ − η(g + μm) with ``nesterov``."""

    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _positive("lr", self.lr)
        _share("momentum", self.momentum)
        _not_negative("weight_decay", self.weight_decay)
        if self.nesterov and not self.momentum:
            raise BadInput("nesterov needs momentum, which is 0. Give one, such as momentum=0.9.")

    def start(self, parameters: Mapping[str, Tensor]) -> State:
        return {f"momentum/{n}": torch.zeros_like(p) for n, p in parameters.items()} if self.momentum else {}

    def step(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: State, index: int
    ) -> tuple[dict[str, Tensor], State]:
        moved, state = dict(parameters), dict(state)
        for name, gradient in gradients.items():
            if self.weight_decay:
                gradient = gradient + self.weight_decay * parameters[name]
            direction = gradient
            if self.momentum:
                direction = state[f"momentum/{name}"] = self.momentum * state[f"momentum/{name}"] + gradient
                if self.nesterov:
                    direction = gradient + self.momentum * direction
            moved[name] = parameters[name] - self.lr * direction
        return moved, state

    def travel(self, steps: int) -> float:
        """How far ``steps`` steps along a constant unit gradient lead: η · steps without momentum."""
        memory, far = 0.0, 0.0
        for _ in range(steps):
            memory = self.momentum * memory + 1
            far += 1 + self.momentum * memory if self.nesterov else memory
        return self.lr * far


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """θ ← θ − η m̂ / (√v̂ + ε), the moments m, v of ∇L corrected for their start at zero (Kingma & Ba 2015).

    Weight decay is added to the gradient or, when ``decoupled``, taken off the weights: AdamW (Loshchilov & Hutter
    2019). The first step is nearly the gradient's sign, whose derivative nearly vanishes.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        _positive("lr", self.lr)
        _positive("eps", self.eps)
        _not_negative("weight_decay", self.weight_decay)
        if len(self.betas) != 2:
            raise BadInput(f"betas are two numbers, such as 0.9 and 0.999; got {self.betas}.")
        for beta in self.betas:
            _share("betas", beta)

    def start(self, parameters: Mapping[str, Tensor]) -> State:
        return {f"{kind}/{n}": torch.zeros_like(p) for kind in ("mean", "square") for n, p in parameters.items()}

    def step(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: State, index: int
    ) -> tuple[dict[str, Tensor], State]:
        moved, state = dict(parameters), dict(state)
        first, second = self.betas
        size, spread = self.lr / (1 - first ** (index + 1)), sqrt(1 - second ** (index + 1))
        for name, gradient in gradients.items():
            weights = parameters[name]
            if self.weight_decay and self.decoupled:
                weights = weights * (1 - self.lr * self.weight_decay)
            elif self.weight_decay:
                gradient = gradient + self.weight_decay * weights
            mean = state[f"mean/{name}"] = first * state[f"mean/{name}"] + (1 - first) * gradient
            square = state[f"square/{name}"] = second * state[f"square/{name}"] + (1 - second) * gradient.square()
            moved[name] = weights - size * mean / (_root(square) / spread + self.eps)
        return moved, state


def adamw(*, lr: float = 1e-3, weight_decay: float = 0.01) -> Adam:
    """Adam with decoupled weight decay, at torch's defaults."""
    return Adam(lr=lr, weight_decay=weight_decay, decoupled=True)


def _root(square: Tensor) -> Tensor:
    """√v with derivative 0, not infinity, where v = 0: a unit that never fired has no gradient to pass on."""
    fired = square > 0
    return torch.where(fired, square, 1).sqrt() * fired


def _positive(name: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise BadInput(f"{name} is {value}; it must be a finite number above 0.")


def _not_negative(name: str, value: float) -> None:
    if not (isfinite(value) and value >= 0):
        raise BadInput(f"{name} is {value}; it must be a finite number, 0 or more.")


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise BadInput(f"{name} is {value}; it must lie in [0, 1).")
