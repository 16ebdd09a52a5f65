"""One member of a population: its guess, its optimiser, and the best point it has measured."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from leakscope.attacks.closure import Closure
from leakscope.attacks.decoders import Pixels
from leakscope.attacks.differentiate import Differentiate, Problem
from leakscope.attacks.optimisation import Optimisation, Stop
from leakscope.attacks.parts import Projection, Start
from leakscope.attacks.terms import Candidate
from leakscope.random import fork
from leakscope.types import Observation, Outcome, Status

__all__ = ["Member"]


@final
class Member:
    """State of one restart. Its leaf holds normalised images, or a decoder's coordinates; soft labels lie beside it."""

    def __init__(self, index: int, attack: Optimisation, observation: Observation, generator: torch.Generator) -> None:
        model = observation.model
        like: dict[str, Any] = {"device": model.device, "dtype": model.dtype}
        shape = (observation.batch_size, *observation.input.shape)
        self._decoder = Pixels(shape=shape) if attack.decode is None else attack.decode(observation)
        guess = attack.labels(observation, fork(generator, f"restart/{index}/labels"))
        draw = fork(generator, f"restart/{index}/init")
        if isinstance(attack.init, Start):
            start = self._decoder.encode(attack.init.start(observation, None if guess.soft else guess.values, draw))
        else:
            start = attack.init(self._decoder.shape, draw)
        self.index = index
        self.label_source, self._soft = guess.source, guess.soft
        self._attack, self._model = attack, model
        self._free = start.to(**like).requires_grad_()
        self._labels = guess.values.to(**like).requires_grad_() if guess.soft else guess.values.to(model.device)
        self.leaves = [self._free, self._labels] if guess.soft else [self._free]
        self._project()
        self._optimiser = attack.optimiser.build(self.leaves)
        self._noise = generator
        self._weights: list[float] = []
        self.best = math.inf
        self._best_leaves = [leaf.detach().clone() for leaf in self.leaves]
        self._improved_at, self._mark = 0, math.inf
        self.trace: list[float] = []
        self.outcome: Outcome | None = None

    def candidate(self, peers: tuple[Tensor, ...] = (), free: Tensor | None = None) -> Candidate:
        """The current guess, or the one at ``free``, with a fresh graph back to the leaves."""
        inputs = self._decoder(self._free if free is None else free)
        return Candidate(
            images=self._model.denormalise(inputs),
            inputs=inputs,
            labels=self._labels.softmax(dim=1) if self._soft else self._labels,
            peers=peers,
        )

    def images(self) -> Tensor:
        """The best measured images as pixels in [0, 1]."""
        return self._model.denormalise(self._decoder(self._best_leaves[0])).clamp(0, 1)

    def labels(self) -> Tensor:
        """Class indices at the best measured point; boxes as they were given."""
        return self._best_leaves[1].argmax(dim=1) if self._soft else self._labels

    def advance(self, step: int, problem: Problem, differentiate: Differentiate, peers: tuple[Tensor, ...]) -> None:
        """One optimiser step: one replay for first-order optimisers, several inside second-order ones."""
        progress = step / self._attack.steps
        for group in self._optimiser.param_groups:
            group["lr"] = self._attack.optimiser.lr * self._attack.schedule(progress)
        self._weigh(progress)
        closure = Closure(
            problem=problem,
            leaves=self.leaves,
            guess=lambda free=None: self.candidate(peers, free),
            progress=progress,
            differentiate=differentiate,
            transforms=self._attack.transforms,
            keep=self._keep,
        )
        self._optimiser.step(closure)
        self._disturb(step, self._attack.schedule(progress))
        self._filter(step)
        self._project()
        self.trace.append(closure.measured[0])
        self.outcome = self._ended(step, self._attack.stop)

    def _project(self) -> None:
        if self._attack.project is not None:
            self._apply(self._attack.project)

    def _filter(self, step: int) -> None:
        every = self._attack.filter
        if every is not None and (step + 1) % every.every == 0:
            self._apply(every.apply)

    def _apply(self, change: Projection) -> None:
        with torch.no_grad():
            inputs = change(self._decoder(self._free), self._model)
            self._free.copy_(self._decoder.encode(inputs))

    def _weigh(self, progress: float) -> None:
        """Start the best anew where the terms weigh otherwise than before: those losses cannot be compared."""
        weights = [weighted.weight * weighted.schedule(progress) for weighted in self._attack.terms]
        if self._weights and weights != self._weights:
            self.best = self._mark = math.inf
        self._weights = weights

    def _disturb(self, step: int, factor: float) -> None:
        if self._attack.noise:
            drawn = torch.randn(self._free.shape, generator=fork(self._noise, f"restart/{self.index}/noise/{step}"))
            size = self._attack.noise * self._attack.optimiser.lr * factor
            with torch.no_grad():
                self._free.add_(drawn.to(self._free), alpha=size)

    def _keep(self, loss: float) -> None:
        if loss < self.best:
            self.best = loss
            for kept, leaf in zip(self._best_leaves, self.leaves, strict=True):
                kept.copy_(leaf.detach())

    def _ended(self, step: int, stop: Stop) -> Outcome | None:
        if not math.isfinite(self.trace[-1]) or not all(bool(torch.isfinite(leaf).all()) for leaf in self.leaves):
            kept = "the best point before it is kept" if math.isfinite(self.best) else "nothing was ever measured"
            return Outcome(status=Status.DIVERGED, message=f"Not a number at step {step}: {kept}.")
        if stop.target is not None and self.best <= stop.target:
            return Outcome(status=Status.TARGET_REACHED, message=f"Loss {self.best:.3g} reached at step {step}.")
        if self.best < self._mark * (1 - stop.tolerance):
            self._improved_at, self._mark = step, self.best
        elif stop.patience is not None and step - self._improved_at >= stop.patience:
            return Outcome(
                status=Status.PLATEAU, message=f"No progress since step {self._improved_at}, at loss {self.best:.3g}."
            )
        return None

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on with the same bits; tensors and plain values only."""
        return {
            "leaves": [leaf.detach() for leaf in self.leaves],
            "best_leaves": self._best_leaves,
            "optimiser": self._optimiser.state_dict(),
            "best": self.best,
            "plateau": [self._improved_at, self._mark],
            "weights": self._weights,
            "trace": self.trace,
            "outcome": None if self.outcome is None else [self.outcome.status.value, self.outcome.message],
        }

    def restore(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self.leaves, state["leaves"], strict=True):
            mine.data.copy_(saved)
        for mine, saved in zip(self._best_leaves, state["best_leaves"], strict=True):
            mine.copy_(saved)
        self._optimiser.load_state_dict(state["optimiser"])
        self.best, (self._improved_at, self._mark) = state["best"], state["plateau"]
        self._weights = list(state.get("weights", []))
        self.trace = list(state["trace"])
        ended = state["outcome"]
        self.outcome = None if ended is None else Outcome(status=Status(ended[0]), message=ended[1])
