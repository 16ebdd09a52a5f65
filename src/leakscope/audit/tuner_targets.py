"""What the trials of a search attack: the whole batch, or one image of it at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from leakscope.attacks.explain import Judge, matching_loss
from leakscope.audit.run import Case
from leakscope.audit.triage import candidates
from leakscope.audit.tuner_objective import Objective, oracle_judge
from leakscope.errors import BadInput
from leakscope.types import Observation

__all__ = ["Target", "Targets", "target_case"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a trial sees, what it is judged by, and what an oracle's trial has beside it: the attacker's own measure."""

    observation: Observation
    judge: Judge
    matching: Judge | None = None


@final
class Targets:
    """The targets of a search, each observed when it is first asked for."""

    def __init__(self, case: Case, objective: Objective, *, each: bool) -> None:
        self._cases = [target_case(case, index) for index in range(len(case.batch))] if each else [case]
        self._objective: Objective = objective
        self._made: dict[int, Target] = {}

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(range(len(self._cases)))

    def __getitem__(self, index: int) -> Target:
        if index not in self._made:
            self._made[index] = self._make(self._cases[index])
        return self._made[index]

    def _make(self, case: Case) -> Target:
        observation = case.observe()
        if self._objective == "realistic":  # it never touches the truth
            return Target(observation=observation, judge=matching_loss(observation, case.attack))
        try:
            matching = matching_loss(observation, case.attack)
        except BadInput:  # an attack without a matching term can be judged by the truth all the same
            matching = None
        return Target(observation=observation, judge=oracle_judge(case.batch), matching=matching)


def target_case(case: Case, image: int | None) -> Case:
    """The case of one image of the batch alone; the case itself if no image is named."""
    return case if image is None else candidates(case)[image]
