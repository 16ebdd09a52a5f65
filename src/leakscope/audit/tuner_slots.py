"""How many processes share one study: claiming a trial, and taking over where a process died.

A study has a fixed number of *slots*, each of which must end once. A slot's work is an Optuna trial that carries the
slot's number from the moment it exists. Three rules make it exactly once, on any storage:

1. A slot belongs to its lowest-numbered trial that has not failed. Two processes may both enqueue a slot: one yields.
2. A waiting trial is claimed by the one process whose change of its state to *running* went through.
3. A finished trial cannot be changed. A process that was taken for dead and comes back finds its trial failed, and
   drops it; the slot is another trial's by then.

Whoever sees a running trial without a sign of life marks it failed and enqueues its slot again, with the same settings.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from leakscope.audit.tuner_life import alive_here

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

__all__ = ["BEAT", "DEATHS", "ERRORS", "INTERRUPTED", "OWNER", "SLOT", "WHY", "Slots", "trial_id"]

log = logging.getLogger(__name__)

SLOT: Final = "slot"
OWNER: Final = "owner"
BEAT: Final = "beat"
WHY: Final = "ended because"
INTERRUPTED: Final = "interrupted"
_SPARE: Final = "spare"
_GONE: Final = "its process is gone"
ERRORS, DEATHS = 3, 20
"""How often a slot may raise, or die with its process, before it counts as failed: it may be what kills."""


@final
class Slots:
    """The slots of one study, as this process sees them; ``grace`` seconds without a sign of life mean death.

    Death is judged by this process' own clock (a counter that stands still), so clocks need not agree over machines.
    """

    def __init__(self, study: optuna.Study, storage: BaseStorage, count: int, *, grace: float) -> None:
        self._study, self._storage, self._count, self._grace = study, storage, count, grace
        self._id = storage.get_study_id_from_name(study.study_name)
        self._seen: dict[int, tuple[object, float]] = {}

    def fill(self, first: Mapping[int, Mapping[str, Any]]) -> None:
        """Enqueue the first slot that no living trial stands for, unless something waits; ``first`` are given settings.

        One at a time: processes that start together then rarely enqueue the same slot.
        """
        from optuna.trial import TrialState

        by_slot = self._by_slot()
        holders = {slot: self._holder(by_slot[slot]) for slot in range(self._count)}
        if any(holder is not None and holder.state is TrialState.WAITING for holder in holders.values()):
            return
        for slot, holder in holders.items():
            tried = by_slot[slot]
            if holder is not None or self._given_up(tried):
                continue
            settings = dict(first.get(slot, {}))
            for trial in tried:  # the same slot again means the same settings
                settings = {**trial.system_attrs.get("fixed_params", {}), **trial.params} or settings
            self._study.enqueue_trial(settings, user_attrs={SLOT: slot})
            return

    def claim(self, owner: Mapping[str, Any]) -> FrozenTrial | None:
        """A waiting trial that is this process' from now on, or ``None`` where nothing waits."""
        from optuna.trial import TrialState

        for tried in self._by_slot().values():
            holder = self._holder(tried)
            for trial in tried:
                if trial.state is TrialState.WAITING and trial is not holder:
                    self._end(trial, _SPARE)
            if holder is None or holder.state is not TrialState.WAITING:
                continue
            with contextlib.suppress(_finished()):
                if self._storage.set_trial_state_values(trial_id(holder), TrialState.RUNNING):
                    self._storage.set_trial_user_attr(trial_id(holder), OWNER, dict(owner))
                    return self._storage.get_trial(trial_id(holder))
        return None

    def bury(self) -> list[int]:
        """Mark running trials whose process is gone as failed; returns their slots."""
        from optuna.trial import TrialState

        buried: list[int] = []
        now = time.monotonic()
        for trial in self._trials():
            if trial.state is not TrialState.RUNNING or SLOT not in trial.user_attrs:
                continue
            sign = (trial.user_attrs.get(BEAT), repr(trial.user_attrs.get(OWNER)))
            before = self._seen.get(trial.number)
            if before is None or before[0] != sign:
                self._seen[trial.number] = before = (sign, now)
            dead = alive_here(trial.user_attrs.get(OWNER)) is False
            if (dead or now - before[1] > self._grace) and self._end(trial, _GONE):
                log.info("Trial %d showed no sign of life: its slot is tried again.", trial.number)
                buried.append(trial.user_attrs[SLOT])
        return buried

    def ended(self) -> dict[int, FrozenTrial]:
        """The trial that settled each slot which is over: complete, pruned, or failed too often."""
        over: dict[int, FrozenTrial] = {}
        for slot, tried in self._by_slot().items():
            holder = self._holder(tried)
            if holder is not None and holder.state.is_finished():
                over[slot] = holder
            elif holder is None and self._given_up(tried):
                over[slot] = tried[-1]
        return over

    def _end(self, trial: FrozenTrial, why: str) -> bool:
        """Fail a trial that is not this process'; ``False`` if somebody was quicker."""
        from optuna.trial import TrialState

        try:
            self._storage.set_trial_user_attr(trial_id(trial), WHY, why)
            self._storage.set_trial_state_values(trial_id(trial), TrialState.FAIL)
        except _finished():
            return False
        return True

    def _trials(self) -> list[FrozenTrial]:
        return self._storage.get_all_trials(self._id, deepcopy=False)

    def _by_slot(self) -> dict[int, list[FrozenTrial]]:
        grouped: defaultdict[int, list[FrozenTrial]] = defaultdict(list)
        for trial in sorted(self._trials(), key=lambda trial: trial.number):
            slot = trial.user_attrs.get(SLOT)
            if isinstance(slot, int) and slot < self._count:
                grouped[slot].append(trial)
        return defaultdict(list, sorted(grouped.items()))

    @staticmethod
    def _holder(tried: Sequence[FrozenTrial]) -> FrozenTrial | None:
        from optuna.trial import TrialState

        return next((trial for trial in tried if trial.state is not TrialState.FAIL), None)

    @staticmethod
    def _given_up(tried: Sequence[FrozenTrial]) -> bool:
        why = [trial.user_attrs.get(WHY) for trial in tried]
        errors = sum(one not in (_SPARE, INTERRUPTED, _GONE) for one in why)
        return errors >= ERRORS or why.count(_GONE) >= DEATHS


def trial_id(trial: FrozenTrial) -> int:
    """The storage's own number for a trial; Optuna keeps it to itself, but its storages go by nothing else."""
    return trial._trial_id  # pyright: ignore[reportPrivateUsage]


def _finished() -> type[Exception]:
    from optuna.exceptions import UpdateFinishedTrialError

    return UpdateFinishedTrialError
