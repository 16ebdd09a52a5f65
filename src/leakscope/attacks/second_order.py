"""Levenberg–Marquardt: damped Gauss–Newton steps on r(x) = g(x) − g*, for networks without kinks.

At the truth the residual is zero and, on smooth networks, nearly linear around it: a step that solves
(JᵀJ + μI) d = −Jᵀr, with J = ∂r/∂x, squares the error there. Where g(x) jumps, as it does when a ReLU flips, there is
nothing to gain, and such networks are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, final

import torch
from torch import Tensor

from leakscope.attacks.closure import Closure
from leakscope.attacks.differentiate import Problem
from leakscope.attacks.linearised import ByProducts, Dense, Linearised
from leakscope.attacks.masks import ActivationPattern
from leakscope.attacks.terms import Candidate, Evaluation
from leakscope.attacks.terms.base import Residuals, SumOfSquares
from leakscope.errors import BadInput, NotApplicable
from leakscope.functional.jacobian import Jacobian
from leakscope.functional.least_squares import CountSketch
from leakscope.types import Signal

__all__ = ["LeastSquares", "LevenbergMarquardt", "residuals"]

DENSE: Final = 4000
"""The most unknowns for which J is written down: its Gram matrix then takes 128 MB."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LevenbergMarquardt:
    """Steps of least squares in place of those of ``torch.optim`` (Levenberg 1944; Marquardt 1963).

    ``solver``: ``"dense"`` writes J down and factors JᵀJ, ``"cg"`` needs only products with J, ``"auto"`` is dense up
    to 4,000 unknowns. ``damping``: μ at the start, as a share of JᵀJ's mean diagonal; it falls tenfold after a step
    that kept its promise, or as far as the loss did, and grows fourfold after one that did not, up to ``tries`` times.
    ``rows``: so many rows of J for each unknown are enough; more are sketched down to that. ``entries``: a tensor with
    more entries has no rows in J (it counts in the loss all the same), the first layer excepted: the derivatives of a
    large weight's gradient cost most and add little. Where they turn out to be needed, they come in. ``corrections``:
    up to so many further steps with the same J, as long as each cuts the loss tenfold. ``iterations`` and
    ``tolerance``: when CG ends. ``kinks``: go on where a ReLU or a max-pool makes g(x) jump. ``seed``: of the sketch.
    """

    solver: Literal["auto", "dense", "cg"] = "auto"
    damping: float = 1e-2
    rows: int = 2
    entries: int = 100_000
    corrections: int = 2
    iterations: int = 100
    tolerance: float = 1e-3
    tries: int = 6
    kinks: bool = False
    seed: int = 0

    lr: ClassVar[float] = 1.0
    first_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.solver not in ("auto", "dense", "cg"):
            raise BadInput(f"solver is '{self.solver}'; accepted: 'auto', 'dense' or 'cg'.")
        for name, least in (("rows", 1), ("entries", 1), ("iterations", 1), ("tries", 1), ("corrections", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        for name in ("damping", "tolerance"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be a number above 0.")

    def build(self, leaves: list[Tensor]) -> LeastSquares:
        if len(leaves) > 1:
            raise NotApplicable("Least squares moves images alone: the labels must be known, or recovered beforehand.")
        return LeastSquares(self, leaves[0])


def residuals(problem: Problem, progress: float) -> Residuals:
    """(candidate, evaluation) ↦ r by name, Σ‖r‖² being the whole objective; refused where it is no such sum."""
    parts: list[tuple[float, Residuals]] = []
    for weighted, _ in problem.terms:
        weight = weighted.weight * weighted.schedule(progress)
        if not weight:
            continue
        term = weighted.term
        if weight < 0 or not isinstance(term, SumOfSquares):
            raise NotApplicable(
                f"Least squares minimises sums of squares, and {type(term).__name__} with weight {weight:g} is none. "
                "Leave that term out, or take an optimiser that asks for gradients only."
            )
        parts.append((math.sqrt(weight), term.residuals(problem.observation)))

    def gaps(candidate: Candidate, evaluation: Evaluation) -> dict[str, Tensor]:
        found = [(root, part(candidate, evaluation)) for root, part in parts]
        return {f"{i}/{name}": root * r for i, (root, rows) in enumerate(found) for name, r in rows.items()}

    return gaps


@final
class LeastSquares:
    """One member's solver. Its state is the damping μ, and whether all tensors have rows: the rest follows from it."""

    param_groups: ClassVar[tuple[dict[str, Any], ...]] = ()

    def __init__(self, settings: LevenbergMarquardt, leaf: Tensor) -> None:
        self._settings, self._leaf = settings, leaf
        self._damping: float | None = None
        self._names: tuple[str, ...] = ()  # of the tensors with rows in J, chosen anew for every J
        self._everything, self._smooth = False, settings.kinks

    def state_dict(self) -> dict[str, Any]:
        return {"damping": self._damping, "everything": self._everything}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._damping, self._everything = state["damping"], state["everything"]

    def step(self, closure: Closure) -> None:
        """Linearise once; try steps under growing damping until one lowers the loss; then correct with the same J."""
        self._check_smooth(closure)
        gaps, self._names = residuals(closure.problem, closure.progress), ()
        rows = self._rows(closure, gaps, closure.measure())
        if not math.isfinite(closure.measured[-1]) or not closure.measured[-1] > 0:
            return
        linear = self._linearise(closure, gaps)
        if self._damping is None:
            self._damping = self._settings.damping * linear.diagonal
        for _ in range(self._settings.tries):
            moved = self._attempt(closure, gaps, linear, rows)
            if moved is not None:
                rows = moved
                break
        else:
            return
        for _ in range(self._settings.corrections):
            damping, before = self._damping, linear.loss(rows)
            moved = self._attempt(closure, gaps, linear, rows)
            if moved is None:
                self._damping = damping  # an old J says nothing about how far a new one may be trusted
                return
            if linear.loss(moved) > 0.1 * before:
                return
            rows = moved

    def _attempt(self, closure: Closure, gaps: Residuals, linear: Linearised, rows: Tensor) -> Tensor | None:
        """One step from the leaf: the rows where it leads if the loss fell, else ``None`` and the leaf as it was."""
        assert self._damping is not None
        step = linear.step(rows, self._damping)
        if step is None or not bool(torch.isfinite(step).all()):
            self._damping *= 10
            return None
        before, lowest = self._leaf.detach().clone(), closure.measured[-1]
        self._leaf.data.add_(step.view_as(self._leaf).to(self._leaf))
        moved = self._rows(closure, gaps, closure.measure())
        start, promised = linear.gain(rows, step)
        kept = (start - linear.loss(moved)) / promised if promised > 0 else -math.inf  # the gain ratio, 1 where linear
        if not (kept > 0 and closure.measured[-1] < lowest):
            # Where the rows in J gain much by a step, and the whole signal nothing, they do not speak for it.
            self._everything |= kept > 0 and linear.loss(moved) < 0.5 * start
            self._leaf.data.copy_(before)
            self._damping *= 4
            return None
        fallen = max(linear.loss(moved) / start, 1e-4)  # with μ falling as the loss does, the error is squared
        self._damping *= min(0.1, fallen) if kept > 0.75 else 1 if kept > 0.25 else 4
        return moved

    def _linearise(self, closure: Closure, gaps: Residuals) -> Linearised:
        seen, settings = closure.problem.observation, self._settings

        def function(free: Tensor) -> Signal:
            guess = closure.guess(free)
            signal = seen.protocol.replay(seen.model, guess.images, guess.labels, create_graph=True)
            found = gaps(guess, Evaluation(signal=signal))
            # What does not depend on the images has rows all the same, of zeros.
            return {name: r if r.requires_grad else r + 0 * free.sum() for name, r in found.items()}

        with seen.model.differentiable_twice():
            jacobian = Jacobian(function, self._leaf, dict.fromkeys(self._names, 1.0))
            dense = settings.solver == "dense" or (settings.solver == "auto" and jacobian.columns <= DENSE)
            generator = torch.Generator().manual_seed(settings.seed)
            if not dense:
                return ByProducts(
                    jacobian, iterations=settings.iterations, tolerance=settings.tolerance, generator=generator
                )
            enough = settings.rows * jacobian.columns
            if jacobian.rows <= enough:
                return Dense(jacobian, None)
            # The same seed, the same sketch: from step to step it is one problem that is solved.
            return Dense(jacobian, CountSketch.draw(jacobian.rows, enough, self._leaf.detach(), generator))

    def _rows(self, closure: Closure, gaps: Residuals, signal: Signal) -> Tensor:
        """r as one vector, of the tensors that J has rows for."""
        with torch.no_grad():
            found = gaps(closure.guess(), Evaluation(signal=signal))
        if not self._names:
            self._names = self._chosen(closure, found)
        return torch.cat([found[name].flatten() for name in self._names])

    def _chosen(self, closure: Closure, found: Signal) -> tuple[str, ...]:
        first = closure.problem.observation.model.anatomy.first_layer
        if first is None or self._everything:
            return tuple(found)
        most, ending = self._settings.entries, f"/{first.weight}"
        small = tuple(name for name, r in found.items() if r.numel() <= most or name.endswith(ending))
        few = sum(found[name].numel() for name in small) < self._settings.rows * self._leaf.numel()
        return tuple(found) if few else small

    def _check_smooth(self, closure: Closure) -> None:
        if self._smooth:
            return
        model, pattern = closure.problem.observation.model, ActivationPattern()
        with torch.no_grad(), model.mode(training=False), pattern.record():
            model(closure.guess().images)
        if len(pattern):
            raise NotApplicable(
                f"{model.name} has {len(pattern)} ReLUs, max-pools or the like: its gradient jumps where one flips, "
                "and second-order steps lead nowhere. Take a first-order recipe; kinks=true tries all the same."
            )
        self._smooth = True
