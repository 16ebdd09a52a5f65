"""What an optimiser may ask of a member at its present point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

import torch
from torch import Tensor

from leakscope.attacks.differentiate import Differentiate, Problem
from leakscope.attacks.parts import Transform
from leakscope.attacks.terms import Candidate, Evaluation
from leakscope.types import Signal

__all__ = ["Closure", "Guess"]


class Guess(Protocol):
    """The candidate at these free coordinates, at the leaf's own by default; a fresh graph back to them."""

    def __call__(self, free: Tensor | None = None) -> Candidate: ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """The objective as a member sees it in one step.

    torch's optimisers call it: the loss comes back, the gradient is left in the leaves. Least-squares solvers take it
    apart instead: they :meth:`measure` points, and differentiate the replay of ``guess`` themselves.
    """

    problem: Problem
    leaves: Sequence[Tensor]
    guess: Guess
    progress: float
    differentiate: Differentiate
    transforms: tuple[Transform, ...]
    keep: Callable[[float], None]
    measured: list[float] = field(default_factory=list[float])

    def __call__(self) -> float:
        loss, gradients = self.differentiate(self.problem, self.leaves, self.guess, self.progress)
        self._note(float(loss))
        for transform in self.transforms:
            gradients[0] = transform(gradients[0])
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient.contiguous()  # L-BFGS asks for it
        return self.measured[-1]

    def measure(self) -> Signal:
        """The replay at the leaves, without a graph; its loss is noted."""
        seen, guess = self.problem.observation, self.guess()
        replayed = seen.protocol.replay(seen.model, guess.images.detach(), guess.labels)
        signal = {name: value.detach() for name, value in replayed.items()}
        with torch.no_grad():
            loss = self.problem.total(guess, Evaluation(signal=signal), self.progress)
        self._note(float(loss))
        return signal

    def _note(self, loss: float) -> None:
        self.measured.append(loss)
        self.keep(loss)
