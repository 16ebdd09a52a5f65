"""Settings for an attack, found by trying: Optuna's TPE with pruning, one study for any number of processes.

The attack sees the observation and nothing else. What steers the search is named in the study: ``realistic`` (the
attacker's own loss) or ``oracle`` (the truth: an upper bound).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, final

import torch

from leakscope.attacks import ATTACKS, Optimisation
from leakscope.attacks.configure import configured
from leakscope.attacks.explain import Judge, matching_loss
from leakscope.attacks.settings import settings
from leakscope.audit.run import Case
from leakscope.audit.tuned import Row, Tuned
from leakscope.audit.tuner_life import Heartbeat, myself
from leakscope.audit.tuner_objective import Objective, Reporter, oracle_judge
from leakscope.audit.tuner_slots import BEAT, INTERRUPTED, SLOT, WHY, Slots, trial_id
from leakscope.audit.tuner_space import Space, suggest
from leakscope.audit.tuner_storage import named, open_storage
from leakscope.errors import BadInput
from leakscope.random import fork
from leakscope.types import Callback, Observation, Progress, Status

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

__all__ = ["Pruner", "Tuning", "tune"]

Pruner = Literal["median", "halving", "none"]

_POLL: Final = 0.25
"""Seconds between looks at what other processes do, where there is nothing left to claim."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What is tuned and how. ``options`` are fixed, ``space`` is searched; ``case.attack`` has the former alone.

    ``pruner``: give up trials that are worse than the median of the others at the same share of their way
    (``median``), or all but the best quarter at each of a few rungs (``halving``), once ``startup`` trials have ended.
    ``beat`` and ``grace``: seconds between signs of life, and without one until a process is taken for dead.
    """

    case: Case
    options: Mapping[str, object]
    space: Space
    objective: Objective = "realistic"
    trials: int = 30
    pruner: Pruner = "median"
    startup: int = 5
    beat: float = 10.0
    grace: float = 60.0

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise BadInput(f"The number of trials is {self.trials}; it must be at least 1.")
        if not self.space:
            raise BadInput(f"There is nothing to search in '{self.case.attack_name}' beside what is fixed.")
        if not self.grace > 2 * self.beat > 0:
            raise BadInput(f"grace is {self.grace} s; it must be more than two beats of {self.beat} s.")

    def identity(self) -> dict[str, str]:
        """What two processes must agree on to share a study. It tells nothing of the images."""
        case = self.case
        client = [settings(part) for part in (case.client, case.belief, *case.defences, sorted(case.threat.knows))]
        parts = {
            "objective": self.objective,
            "attack": case.attack_name,
            "fixed options": settings(self.options),
            "search space": settings(self.space),
            "model": case.model.fingerprint(),
            "client and server": client,
            "seed": [case.seed, case.stream],
            "images": len(case.batch),
        }
        return {key: json.dumps(value, sort_keys=True) for key, value in parts.items()}


class _Pruned(Exception):
    """The trial is not worth going on with."""


class _Stopped(Exception):
    """Somebody asked for the search to stop."""


class _Lost(Exception):
    """Others have taken this process for dead: the trial is theirs."""


def tune(
    tuning: Tuning,
    *,
    storage: str,
    study: str,
    callback: Callable[[int], Callback] | None = None,
    ended: Callable[[Row], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Work on the study until all of its trials have ended, here or in other processes, or ``stop`` says so.

    The same call again goes on where the study stands. ``callback`` makes the callback of each trial's attack;
    ``ended`` hears of every trial that this process has run to its end.
    """
    place = open_storage(storage)
    shared = _join(tuning, place, study)
    slots = Slots(shared, place, tuning.trials, grace=tuning.grace)
    observation = tuning.case.observe()
    judge = (
        oracle_judge(tuning.case.batch)
        if tuning.objective == "oracle"
        else matching_loss(observation, tuning.case.attack)
    )
    first = {0: _defaults(tuning)}
    while not stop():
        slots.bury()
        slots.fill(first)
        claimed = slots.claim(myself())
        if claimed is not None:
            worker = _Worker(tuning, shared, place, claimed, stop)
            if worker.run(observation, judge, callback) and ended is not None:
                ended(_row(place.get_trial(claimed._trial_id)))  # pyright: ignore[reportPrivateUsage]
        elif len(slots.ended()) >= tuning.trials:
            break
        else:
            time.sleep(_POLL)
    return Tuned(
        study=shared.study_name,
        objective=tuning.objective,
        attack=tuning.case.attack_name,
        fixed=dict(tuning.options),
        trials=tuning.trials,
        rows=tuple(_row(trial) for _, trial in sorted(slots.ended().items())),
    )


def _join(tuning: Tuning, place: BaseStorage, study: str) -> optuna.Study:
    """The study, made if it is not there; refused where it belongs to another search."""
    import optuna

    shared = optuna.create_study(
        storage=place,
        study_name=named(study, tuning.objective),
        direction="maximize" if tuning.objective == "oracle" else "minimize",
        pruner=_pruner(tuning),
        load_if_exists=True,
    )
    mine = tuning.identity()
    for key, value in mine.items():
        there = shared.user_attrs.get(key)
        if there is None:
            shared.set_user_attr(key, value)
        elif there != value:
            raise BadInput(
                f"The study '{shared.study_name}' tunes something else: its {key} is {_short(there)}, here it is "
                f"{_short(value)}. Give this search another study name."
            )
    return shared


@final
class _Worker:
    """One claimed trial, run by this process."""

    def __init__(
        self, tuning: Tuning, study: optuna.Study, place: BaseStorage, claimed: FrozenTrial, stop: Callable[[], bool]
    ) -> None:
        self._tuning, self._study, self._place, self._stop = tuning, study, place, stop
        self._id = trial_id(claimed)
        self._slot: int = claimed.user_attrs[SLOT]
        self._reported: float | None = None

    def run(self, observation: Observation, judge: Judge, callback: Callable[[int], Callback] | None) -> bool:
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
                attack = configured(tuning.case.attack_name, {**tuning.options, **drawn})
                if isinstance(attack, Optimisation):  # processes share the study, not a trial
                    attack = replace(attack, workers=1)
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
                found = attack(observation, generator=fork(root, f"trial/{self._slot}/attack"), callback=told)
                if found.outcome.status is Status.INTERRUPTED:
                    raise KeyboardInterrupt
                value = judge(found.images, found.labels) if math.isfinite(found.energy) else math.nan
                said = {"outcome": found.outcome.message, "energy": str(found.energy), "seconds": found.seconds}
            if math.isfinite(value):
                self._end(TrialState.COMPLETE, value, **said)
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


def _pruner(tuning: Tuning) -> optuna.pruners.BasePruner:
    import optuna

    if tuning.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=tuning.startup, n_warmup_steps=2)
    if tuning.pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=4, reduction_factor=2)
    return optuna.pruners.NopPruner()


def _defaults(tuning: Tuning) -> dict[str, Any]:
    """The recipe's own settings, where they lie in the space: the first trial, so that tuning never loses to them."""
    own = inspect.signature(ATTACKS[tuning.case.attack_name].value).parameters
    return {key: own[key].default for key, one in tuning.space.items() if key in own and one.holds(own[key].default)}


def _seed(seed: int, slot: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{slot}/sampler".encode(), digest_size=4).digest(), "little")


def _row(trial: FrozenTrial) -> Row:
    attributes = trial.user_attrs
    return Row(
        slot=attributes[SLOT],
        state=trial.state.name.lower(),
        value=trial.value if trial.values else None,
        options=dict(trial.params),
        why=str(attributes.get(WHY, "")),
        seconds=attributes.get("seconds"),
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
