"""One trial of a search: drawn, run, judged, and ended or given back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

import torch

from leakscope.attacks import Optimisation
from leakscope.attacks.configure import configured
from leakscope.audit.tuner_life import Heartbeat
from leakscope.audit.tuner_objective import Reporter
from leakscope.audit.tuner_slots import BEAT, INTERRUPTED, SLOT, WHY, trial_id
from leakscope.audit.tuner_space import suggest
from leakscope.random import fork
from leakscope.types import Callback, Progress, Status

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from leakscope.audit.tuner import Tuning
    from leakscope.audit.tuner_targets import Targets

__all__ = ["IMAGE", "MATCHING", "Worker"]

IMAGE: Final = "image"
"""The name under which a trial keeps which image it attacked."""
MATCHING: Final = "matching"
"""The name under which an oracle's trial keeps its matching loss."""


class _Pruned(Exception):
    """The trial is not worth going on with."""


class _Stopped(Exception):
    """Somebody asked for the search to stop."""


class _Lost(Exception):
    """Others have taken this process for dead: the trial is theirs."""


@final
class Worker:
    """One claimed trial, run by this process."""

    def __init__(
        self, tuning: Tuning, study: optuna.Study, place: BaseStorage, claimed: FrozenTrial, stop: Callable[[], bool]
    ) -> None:
        self._tuning, self._study, self._place, self._stop = tuning, study, place, stop
        self._id = trial_id(claimed)
        self._slot: int = claimed.user_attrs[SLOT]
        self._reported: float | None = None

    def run(self, targets: Targets, callback: Callable[[int], Callback] | None) -> bool:
        """Run the attack with drawn settings; whether this process has ended the trial."""
        import optuna
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        tuning = self._tuning
        self._study.sampler = optuna.samplers.TPESampler(seed=_seed(tuning.case.seed, self._slot))
        try:
            with Heartbeat(self._beat, every=tuning.beat) as pulse:
                trial = optuna.trial.Trial(self._study, self._id)
                drawn = suggest(trial, tuning.space)
                image = int(trial.suggest_categorical(IMAGE, targets.indices)) if tuning.each else 0
                target = targets[image]
                attack = configured(tuning.case.attack_name, {**tuning.options, **drawn})
                if isinstance(attack, Optimisation):  # processes share the study, not a trial
                    attack = replace(attack, workers=1)
                judge = target.judge
                reporter = Reporter(judge, largest=tuning.objective == "oracle", report=self._reporting(trial))
                show = None if callback is None else callback(self._slot)

                def told(progress: Progress) -> None:
                    if show is not None:
                        show(progress)
                    if pulse.lost:
                        raise _Lost
                    if self._stop():
                        raise _Stopped
                    reporter(progress)

                root = fork(torch.Generator().manual_seed(tuning.case.seed), tuning.case.stream)
                found = attack(target.observation, generator=fork(root, f"trial/{self._slot}/attack"), callback=told)
                if found.outcome.status is Status.INTERRUPTED:
                    raise KeyboardInterrupt
                value = judge(found.images, found.labels) if math.isfinite(found.energy) else math.nan
                said = {"outcome": found.outcome.message, "energy": str(found.energy), "seconds": found.seconds}
                beside = target.matching
                loss = beside(found.images, found.labels) if beside is not None and math.isfinite(value) else None
            if math.isfinite(value):
                self._end(TrialState.COMPLETE, value, **said, **{MATCHING: loss})
            else:
                self._end(TrialState.PRUNED, None, **{**said, WHY: "it diverged"})
        except _Pruned:
            self._end(TrialState.PRUNED, self._reported, **{WHY: "it fell behind"})
        except (_Lost, UpdateFinishedTrialError):
            return False
        except (_Stopped, KeyboardInterrupt) as stopped:
            self._give_back(INTERRUPTED)
            if isinstance(stopped, KeyboardInterrupt):
                raise
            return False
        except Exception as error:
            self._give_back(f"{type(error).__name__}: {error}")
            raise
        return True

    def _beat(self, count: int) -> bool:
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self._place.set_trial_user_attr(self._id, BEAT, count)
        except UpdateFinishedTrialError:
            return False
        return True

    def _reporting(self, trial: optuna.Trial) -> Callable[[int, float], None]:
        def report(index: int, value: float) -> None:
            self._reported = value
            trial.report(value, index)
            if trial.should_prune():
                raise _Pruned

        return report

    def _end(self, state: Any, value: float | None, **attributes: object) -> None:
        for key, attribute in attributes.items():
            self._place.set_trial_user_attr(self._id, key, attribute)
        self._place.set_trial_state_values(self._id, state, None if value is None else [value])

    def _give_back(self, why: str) -> None:
        """Fail the trial, so that its slot is free again at once."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self._end(TrialState.FAIL, None, **{WHY: why[:500]})
        except UpdateFinishedTrialError:
            return


def _seed(seed: int, slot: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{slot}/sampler".encode(), digest_size=4).digest(), "little")
