"""Statistics: what flows through the model's normalisation layers should look like training data, or like the batch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor

from leakscope.attacks.terms import targets as find
from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.errors import BadInput, NotApplicable
from leakscope.functional.statistics import moments
from leakscope.types import Observation

__all__ = ["BatchStatistics", "RunningStatistics", "Source", "chosen_source"]

log = logging.getLogger(__name__)

Source = Literal["running", "exact", "proxy", "auto"]


@final
@dataclass(frozen=True, slots=True)
class RunningStatistics:
    """Σ_l ‖μ_l(x) − μ_l‖₂ + ‖σ²_l(x) − σ²_l‖₂ over the BatchNorm layers, towards the model's running statistics.

    (GradInversion's R_BN; Huang et al. 2021.) A model without BatchNorm, or whose statistics were never trained, is
    refused: there would be nothing to move towards.
    """

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return tuple(find.batch_norms(observation))

    def bind(self, observation: Observation) -> Bound:
        return _towards(observation, find.running(observation))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """The same distance, towards the best that this server can know of the *batch's* statistics (Valadi et al. 2025).

    ``statistics``: ``"exact"``, read back from the running statistics that the client shared; ``"proxy"``, those of the
    ``keep`` best of ``candidates`` public batches, over norms of every kind; ``"running"``, the model's own;
    ``"auto"``, the first of exact, proxy and running that can be had here, and if none can, nothing (the
    evidence of a run says so).
    ``approximate``: whether ``"exact"`` may take the weighted mean of several local steps for the batch's.
    ``relative``: in units of the target's own deviation, ‖(μ − μ*)/σ*‖₂/√C + ‖(σ² − σ²*)/σ*²‖₂/√C over C statistics, so
    that every layer counts alike. As published, a layer counts by its size, which on networks whose activations grow
    with depth leaves the last ones alone.
    """

    statistics: Source = "auto"
    approximate: bool = False
    relative: bool = False
    candidates: int = 16
    keep: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.statistics not in ("running", "exact", "proxy", "auto"):
            raise BadInput(f"statistics is '{self.statistics}'; accepted: 'running', 'exact', 'proxy' or 'auto'.")
        if not 1 <= self.keep <= self.candidates:
            raise BadInput(f"{self.keep} of {self.candidates} candidate batches cannot be kept: at least 1 must be.")

    def watches(self, observation: Observation) -> tuple[str, ...]:
        source = chosen_source(observation, self.statistics)
        if source == "none":
            return ()
        return tuple(find.norms(observation) if source == "proxy" else find.batch_norms(observation))

    def bind(self, observation: Observation) -> Bound:
        return _towards(observation, self._targets(observation), relative=self.relative)

    def _targets(self, observation: Observation) -> find.Targets:
        source = chosen_source(observation, self.statistics)
        if source == "exact":
            return find.exact(observation, approximate=self.approximate)
        if source == "proxy":
            return find.proxy(observation, candidates=self.candidates, keep=self.keep, seed=self.seed)
        if source == "running":
            return find.running(observation)
        log.info("No normalisation statistics can be had of %s here: none are matched.", observation.model.name)
        return {}


def chosen_source(observation: Observation, wanted: Source) -> Literal["running", "exact", "proxy", "none"]:
    """Where the statistics come from: as ``wanted``, or for ``"auto"`` the best source there is here."""
    if wanted != "auto":
        return wanted
    try:
        find.check_exact(observation)
    except NotApplicable:
        pass
    else:
        return "exact"
    public = observation.public
    if public is not None and len(public) >= observation.batch_size and find.norms(observation):
        return "proxy"
    try:
        find.running(observation)
    except NotApplicable:
        return "none"
    return "running"


_LEAST: Final = 1e-3
"""A channel that hardly varies has at least this share of its layer's mean variance for a unit."""


def _towards(observation: Observation, targets: find.Targets, *, relative: bool = False) -> Bound:
    layers = dict(observation.model.named_modules())
    units = {name: _units(variance) if relative else (1.0, 1.0) for name, (_, variance) in targets.items()}

    def mismatch(candidate: Candidate, evaluation: Evaluation) -> Tensor:
        total = torch.zeros((), dtype=candidate.inputs.dtype, device=candidate.inputs.device)
        for name, (mean, variance) in targets.items():
            centre, spread = moments(layers[name], evaluation.activations[name])
            by_deviation, by_variance = units[name]
            total = total + ((centre - mean) / by_deviation).norm() + ((spread - variance) / by_variance).norm()
        return total

    return mismatch


def _units(variance: Tensor) -> tuple[Tensor, Tensor]:
    """√C·σ* and √C·σ*², with a floor, for a layer's C statistics: what its means and its variances are divided by."""
    floored = variance.clamp_min(_LEAST * float(variance.mean()) + 1e-12)
    return (variance.numel() * floored).sqrt(), variance.numel() ** 0.5 * floored
