"""The gradient of :mod:`leakscope.attacks.differentiate`, a few images at a time: for batches that do not fit at once.

The client's gradient is a sum over images, g(x) = Σ_c g_c(x_c), so that ∂D/∂x_c = (∂g_c/∂x_c)ᵀ v with v = ∂D/∂g at the
whole g. A first round over the parts gives g and v, a second one each part's share of ∂D/∂x: what is alive at any time
are the activations of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leakscope.attacks.differentiate import FINER, Differentiate, Problem, exact, fast, step_in_weights
from leakscope.attacks.masks import ActivationPattern
from leakscope.attacks.terms import Candidate, Evaluation
from leakscope.client.fedsgd import FedSGD
from leakscope.errors import NotApplicable
from leakscope.functional.autograd import gradients
from leakscope.types import Observation

__all__ = ["exact_in_parts", "fast_in_parts", "in_parts", "ways"]


def ways(observation: Observation) -> dict[str, Differentiate]:
    """The exact gradient for this observation, and the fast ones to try: in parts where its client works in parts."""
    slow, quick = (exact_in_parts, fast_in_parts) if in_parts(observation) else (exact, fast)
    return {"exact": slow, "fast": quick, "fast, finer step": partial(quick, scale=FINER)}


def in_parts(observation: Observation) -> bool:
    """Whether the client sends its batch through the network in several parts."""
    client = observation.protocol
    return isinstance(client, FedSGD) and len(client.parts(observation.model, observation.batch_size)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Some of the images and labels, as leaves of a graph of their own; the weight of their loss in the batch's."""

    images: Tensor
    labels: Tensor
    weight: float

    @property
    def leaves(self) -> list[Tensor]:
        return [self.images, self.labels] if self.labels.requires_grad else [self.images]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A problem at one guess, in parts."""

    problem: Problem
    client: FedSGD
    guess: Candidate
    parts: tuple[_Part, ...]

    @staticmethod
    def of(problem: Problem, candidate: Callable[[], Candidate]) -> _Split:
        seen, guess = problem.observation, candidate()
        if not isinstance(seen.protocol, FedSGD):
            raise TypeError(f"{type(seen.protocol).__name__} does not work in parts.")
        if problem.watched:
            raise NotApplicable(
                f"A term looks at what flows into '{problem.watched[0]}' for the whole batch, which micro_batch takes "
                "apart. Leave micro_batch out, or the term."
            )
        parts = tuple(
            _Part(images=_leaf(guess.images[where]), labels=_leaf(guess.labels[where]), weight=weight)
            for where, weight in seen.protocol.parts(seen.model, len(guess.images))
        )
        return _Split(problem=problem, client=seen.protocol, guess=guess, parts=parts)

    def loss(self, part: _Part, parameters: dict[str, Tensor]) -> Tensor:
        seen = self.problem.observation
        return part.weight * self.client.loss(seen.model, part.images, part.labels, parameters=parameters)

    def objective(
        self, replayed: dict[str, Tensor], leaves: Sequence[Tensor], candidate: Callable[[], Candidate], progress: float
    ) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
        """D at the whole signal, v = ∂D/∂g by name, and what depends on the leaves without the replay."""
        signal = {name: g.requires_grad_() for name, g in replayed.items()}
        total = self.problem.total(candidate(), Evaluation(signal=signal), progress)
        found = _grad(total, [*signal.values(), *leaves])
        return total.detach(), dict(zip(signal, found, strict=False)), found[len(signal) :]

    def gather(self, by_part: list[list[Tensor]], leaves: Sequence[Tensor], direct: list[Tensor]) -> list[Tensor]:
        """Gradients in the parts' images and labels as gradients in the leaves, with the direct ones added."""
        whole = [torch.cat(pieces) for pieces in zip(*by_part, strict=True)]
        outputs = [self.guess.images, self.guess.labels][: len(whole)]
        inner = torch.stack([(output * slope).sum() for output, slope in zip(outputs, whole, strict=True)]).sum()
        return [d + p for d, p in zip(direct, _grad(inner, leaves), strict=True)]


def exact_in_parts(
    problem: Problem, leaves: Sequence[Tensor], candidate: Callable[[], Candidate], progress: float
) -> tuple[Tensor, list[Tensor]]:
    """By double backward, one part at a time."""
    split = _Split.of(problem, candidate)
    model, parameters = problem.observation.model, split.client.leaves(problem.observation.model)
    with model.differentiable_twice():
        replayed: dict[str, Tensor] = {}
        for part in split.parts:
            _add(replayed, parameters, gradients(split.loss(part, parameters), list(parameters.values())))
        total, direction, direct = split.objective(replayed, leaves, candidate, progress)
        by_part: list[list[Tensor]] = []
        for part in split.parts:
            wanted = [parameters[name] for name in direction]
            again = gradients(split.loss(part, parameters), wanted, create_graph=True)
            pairs = [(g, v) for g, v in zip(again, direction.values(), strict=True) if g is not None]
            inner = torch.stack([(g * v).sum() for g, v in pairs]).sum()
            by_part.append(_grad(inner, part.leaves))
    return total, split.gather(by_part, leaves, direct)


def fast_in_parts(
    problem: Problem,
    leaves: Sequence[Tensor],
    candidate: Callable[[], Candidate],
    progress: float,
    *,
    scale: float = 1.0,
) -> tuple[Tensor, list[Tensor]]:
    """By a one-sided difference in the weights, one part at a time; each part keeps its own activation pattern."""
    split = _Split.of(problem, candidate)
    parameters = split.client.leaves(problem.observation.model)
    replayed: dict[str, Tensor] = {}
    base: list[list[Tensor]] = []
    patterns = [ActivationPattern() for _ in split.parts]
    for part, pattern in zip(split.parts, patterns, strict=True):
        with pattern.record():
            loss = split.loss(part, parameters)
        found = gradients(loss, [*parameters.values(), *part.leaves])
        _add(replayed, parameters, found)
        base.append(_filled(found[len(parameters) :], part.leaves))

    total, direction, direct = split.objective(replayed, leaves, candidate, progress)
    step = step_in_weights(problem, list(direction.values()), total) * scale
    if step == 0:
        return total, direct
    shifted = {n: torch.add(parameters[n].detach(), v, alpha=step, out=v.contiguous()) for n, v in direction.items()}
    by_part: list[list[Tensor]] = []
    for part, pattern, before in zip(split.parts, patterns, base, strict=True):
        with pattern.impose():
            loss = split.loss(part, shifted)
        moved = _grad(loss, part.leaves)
        by_part.append([(m - b) / step for m, b in zip(moved, before, strict=True)])
    return total, split.gather(by_part, leaves, direct)


def _add(total: dict[str, Tensor], parameters: dict[str, Tensor], found: Sequence[Tensor | None]) -> None:
    for name, g in zip(parameters, found, strict=False):
        if g is not None:
            total[name] = total[name] + g if name in total else g


def _leaf(value: Tensor) -> Tensor:
    detached = value.detach()
    return detached.requires_grad_() if detached.is_floating_point() else detached


def _filled(found: Sequence[Tensor | None], wanted: Sequence[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted, strict=True)]


def _grad(loss: Tensor, wanted: Sequence[Tensor]) -> list[Tensor]:
    return _filled(gradients(loss, wanted), wanted)
