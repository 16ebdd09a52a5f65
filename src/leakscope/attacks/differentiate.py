"""d/dx D(g(x)): the gradient of an objective through the client's replay, behind one small interface.

Two implementations. :func:`exact` differentiates the replay twice. :func:`fast` needs no second derivative: with
s(θ) = ∇x L(x; θ) and v = ∂D/∂g,

    ∂D/∂x = ∂/∂x ⟨∇θ L, v⟩ = d/dε s(θ + ε v)  ≈  [s(θ + ε v) − s(θ)] / ε,

two plain forward-backward passes. ReLU and max-pool patterns are frozen at the base point, without which the
difference would be wrong by factors. It agrees with the exact one to about 4e-4 in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from leakscope.attacks.masks import ActivationPattern
from leakscope.attacks.terms import Bound, Candidate, Evaluation, Weighted
from leakscope.functional.autograd import gradients
from leakscope.models import VisionModel
from leakscope.models.watch import catching
from leakscope.types import Observation

__all__ = ["FINER", "Differentiate", "LossProtocol", "Problem", "agreement", "exact", "fast", "step_in_weights"]

RELATIVE_STEP: Final = {torch.float32: 1e-5, torch.float64: 1e-9}
"""‖ε v‖ / ‖θ‖ for each precision. Smaller drowns in rounding (small networks), larger bends (ViT-B, ResNet-18)."""

FINER: Final = 0.1
"""What the step is multiplied by where it bends too much."""


@runtime_checkable
class LossProtocol(Protocol):
    """A client whose signal is the plain gradient of a loss: what :func:`fast` needs."""

    def leaves(self, model: VisionModel) -> dict[str, Tensor]: ...

    def loss(
        self, model: VisionModel, images: Tensor, labels: Tensor, *, parameters: Mapping[str, Tensor]
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is minimised: the observation, its weighted terms bound to it, and ‖θ‖ as the scale for steps in θ."""

    observation: Observation
    terms: tuple[tuple[Weighted, Bound], ...]
    watched: tuple[str, ...]
    weight_norm: float

    @staticmethod
    def of(observation: Observation, terms: Sequence[Weighted]) -> Problem:
        watched = {name for weighted in terms for name in weighted.term.watches(observation)}
        return Problem(
            observation=observation,
            terms=tuple((weighted, weighted.term.bind(observation)) for weighted in terms),
            watched=tuple(sorted(watched)),
            weight_norm=float(get_total_norm([p.detach() for p in observation.model.parameters()])),
        )

    def total(self, candidate: Candidate, evaluation: Evaluation, progress: float) -> Tensor:
        """Σ weight · schedule(progress) · term; a term whose weight is zero now is not evaluated."""
        parts: list[Tensor] = []
        for weighted, bound in self.terms:
            weight = weighted.weight * weighted.schedule(progress)
            if weight:
                parts.append(weight * bound(candidate, evaluation))
        return torch.stack(parts).sum() if parts else candidate.inputs.sum() * 0


Differentiate = Callable[[Problem, Sequence[Tensor], Callable[[], Candidate], float], tuple[Tensor, list[Tensor]]]
"""(problem, leaves, candidate made from the leaves, progress) -> (loss, gradient for each leaf)."""


def exact(
    problem: Problem, leaves: Sequence[Tensor], candidate: Callable[[], Candidate], progress: float
) -> tuple[Tensor, list[Tensor]]:
    """By double backward, for any protocol whose replay can be differentiated."""
    seen, guess = problem.observation, candidate()
    with seen.model.differentiable_twice(), catching(seen.model.module, problem.watched) as activations:
        signal = seen.protocol.replay(seen.model, guess.images, guess.labels, create_graph=True)
        if problem.watched and not isinstance(seen.protocol, LossProtocol):
            _show_all(seen, guess, activations)
        loss = problem.total(guess, Evaluation(signal=signal, activations=activations), progress)
        by_leaf = _grad(loss, leaves)
    return loss.detach(), by_leaf


def fast(
    problem: Problem,
    leaves: Sequence[Tensor],
    candidate: Callable[[], Candidate],
    progress: float,
    *,
    scale: float = 1.0,
) -> tuple[Tensor, list[Tensor]]:
    """By a one-sided difference in the weights, for protocols that send the gradient of a loss."""
    seen, protocol = problem.observation, problem.observation.protocol
    if not isinstance(protocol, LossProtocol):
        raise TypeError(f"{type(protocol).__name__} does not send the gradient of a loss: use the exact gradient.")
    model, parameters, pattern, guess = seen.model, protocol.leaves(seen.model), ActivationPattern(), candidate()

    with catching(model.module, problem.watched) as activations, pattern.record():
        loss = protocol.loss(model, guess.images, guess.labels, parameters=parameters)
    wanted = [*parameters.values(), *leaves]
    first = gradients(loss, wanted, retain_graph=bool(problem.watched))
    replayed = {n: g.requires_grad_() for n, g in zip(parameters, first, strict=False) if g is not None}
    base = first[len(parameters) :]

    total = problem.total(candidate(), Evaluation(signal=replayed, activations=activations), progress)
    signal = list(replayed.values())
    by_signal_and_leaf = _grad(total, [*signal, *leaves])
    direction, direct = by_signal_and_leaf[: len(signal)], by_signal_and_leaf[len(signal) :]

    step = step_in_weights(problem, direction, total) * scale
    if step == 0:
        return total.detach(), direct
    # Written over the direction, which nothing needs any more: fresh memory of the model's size costs real time.
    shifted = {n: _onto(parameters[n].detach(), v, step) for n, v in zip(replayed, direction, strict=True)}
    with pattern.impose():
        again = candidate()
        loss = protocol.loss(model, again.images, again.labels, parameters=shifted)
    moved = _grad(loss, leaves)
    return total.detach(), [d if s is None else d + (m - s) / step for d, m, s in zip(direct, moved, base, strict=True)]


def step_in_weights(problem: Problem, direction: Sequence[Tensor], total: Tensor) -> float:
    """ε along the direction v = ∂D/∂g, or 0 where there is none to follow."""
    length = float(get_total_norm(list(direction)))
    if length == 0 or not torch.isfinite(total):
        return 0.0
    return RELATIVE_STEP.get(total.dtype, RELATIVE_STEP[torch.float32]) * problem.weight_norm / length


def _show_all(seen: Observation, guess: Candidate, activations: dict[str, Tensor]) -> None:
    """What flows in when the model it sent out sees the whole guess: a client's own passes may take parts of it."""
    activations.clear()
    training = getattr(seen.protocol, "mode", "eval") == "train"
    with seen.model.mode(training):
        seen.model.functional({}, {name: b.clone() for name, b in seen.model.named_buffers()}, guess.images)


def agreement(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """‖one − other‖ / ‖other‖ over all leaves."""
    gap = get_total_norm([a - b for a, b in zip(one, other, strict=True)])
    return float(gap / get_total_norm(list(other)).clamp_min(1e-30))


def _onto(parameter: Tensor, direction: Tensor, step: float) -> Tensor:
    """θ + step · v, in the memory of v."""
    return torch.add(parameter, direction, alpha=step, out=direction.contiguous())


def _grad(loss: Tensor, wanted: Sequence[Tensor]) -> list[Tensor]:
    found = gradients(loss, wanted)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted, strict=True)]
