"""Settings for an attack, found by trying: Optuna's TPE with pruning, one study for any number of processes.

The attack sees the observation and nothing else. What steers the search is named in the study: ``realistic`` (the
attacker's own loss) or ``oracle`` (the truth: an upper bound).
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, final

from leakscope.attacks import ATTACKS
from leakscope.attacks.settings import settings
from leakscope.audit.run import Case
from leakscope.audit.tuned import Row, Tuned
from leakscope.audit.tuner_life import myself
from leakscope.audit.tuner_objective import Objective
from leakscope.audit.tuner_slots import SLOT, WHY, Slots
from leakscope.audit.tuner_space import Space
from leakscope.audit.tuner_storage import named, open_storage
from leakscope.audit.tuner_targets import Targets
from leakscope.audit.tuner_worker import IMAGE, MATCHING, Worker
from leakscope.errors import BadInput
from leakscope.types import Callback

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

    ``each``: every image of the batch is a candidate of its own, and the search chooses among them as it chooses
    settings (Valadi et al. 2025, Appendix A); else the batch is attacked as a whole.
    ``pruner``: give up trials that are worse than the median of the others at the same share of their way
    (``median``), or all but the best quarter at each of a few rungs (``halving``), once ``startup`` trials have ended.
    ``beat`` and ``grace``: seconds between signs of life, and without one until a process is taken for dead.
    """

    case: Case
    options: Mapping[str, object]
    space: Space
    objective: Objective = "realistic"
    trials: int = 30
    each: bool = False
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
            "images": [len(case.batch), "each"] if self.each else len(case.batch),
        }
        return {key: json.dumps(value, sort_keys=True) for key, value in parts.items()}


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
    targets = Targets(tuning.case, tuning.objective, each=tuning.each)
    first = {0: _defaults(tuning)}
    while not stop():
        slots.bury()
        slots.fill(first)
        claimed = slots.claim(myself())
        if claimed is not None:
            worker = Worker(tuning, shared, place, claimed, stop)
            if worker.run(targets, callback) and ended is not None:
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
    found = {key: own[key].default for key, one in tuning.space.items() if key in own and one.holds(own[key].default)}
    return found | ({IMAGE: 0} if tuning.each else {})


def _row(trial: FrozenTrial) -> Row:
    attributes = trial.user_attrs
    return Row(
        slot=attributes[SLOT],
        state=trial.state.name.lower(),
        value=trial.value if trial.values else None,
        options={key: value for key, value in trial.params.items() if key != IMAGE},
        image=trial.params.get(IMAGE),
        matching=attributes.get(MATCHING),
        why=str(attributes.get(WHY, "")),
        seconds=attributes.get("seconds"),
    )


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
