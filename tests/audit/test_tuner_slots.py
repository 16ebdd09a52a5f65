"""Slots on an in-memory storage: enqueued twice, claimed once, taken over, given up."""

from __future__ import annotations

import os
from collections.abc import Callable

import optuna
import pytest
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from leakscope.audit import tuner_slots
from leakscope.audit.tuner_life import Heartbeat, alive_here, myself
from leakscope.audit.tuner_slots import BEAT, DEATHS, ERRORS, INTERRUPTED, SLOT, WHY, Slots, trial_id

needs_proc = pytest.mark.skipif(alive_here(myself()) is None, reason="this system does not list its processes in /proc")


@pytest.fixture
def storage() -> InMemoryStorage:
    return InMemoryStorage()


@pytest.fixture
def study(storage: InMemoryStorage) -> optuna.Study:
    return optuna.create_study(storage=storage, study_name="s")


@pytest.fixture
def slots(study: optuna.Study, storage: InMemoryStorage) -> Slots:
    return Slots(study, storage, 3, grace=30.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time pass."""
    now = [1000.0]
    monkeypatch.setattr(tuner_slots.time, "monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


ELSEWHERE = {"host": "other", "pid": 1, "boot": "another boot", "start": 5}


def _states(study: optuna.Study) -> list[tuple[int, str]]:
    return [(trial.user_attrs[SLOT], trial.state.name) for trial in study.trials]


def test_a_slot_that_two_processes_enqueued_is_claimed_once(
    study: optuna.Study, storage: InMemoryStorage, slots: Slots
) -> None:
    claimed: list[int] = []
    for slot in (0, 1, 2):
        slots.fill({})
        study.enqueue_trial({}, user_attrs={SLOT: slot})  # a second process that looked before the first enqueued
        while (trial := slots.claim(ELSEWHERE)) is not None:
            claimed.append(trial.user_attrs[SLOT])
            storage.set_trial_state_values(trial_id(trial), TrialState.COMPLETE, [0.0])
    assert claimed == [0, 1, 2]
    assert sorted(_states(study)) == [(s, state) for s in (0, 1, 2) for state in ("COMPLETE", "FAIL")]
    assert set(slots.ended()) == {0, 1, 2}
    slots.fill({})
    assert len(study.trials) == 6


def test_a_claimed_trial_is_nobody_elses(study: optuna.Study, storage: InMemoryStorage, slots: Slots) -> None:
    for slot in (0, 1, 2):
        study.enqueue_trial({}, user_attrs={SLOT: slot})
    other = Slots(study, storage, 3, grace=30.0)
    taken = [one.claim(ELSEWHERE) for one in (slots, other, slots, other)]
    assert [None if trial is None else trial.user_attrs[SLOT] for trial in taken] == [0, 1, 2, None]
    other.fill({})
    assert len(study.trials) == 3


def test_no_sign_of_life_for_the_grace_is_death_and_the_settings_are_tried_again(
    study: optuna.Study, storage: InMemoryStorage, slots: Slots, clock: Callable[[float], None]
) -> None:
    for _ in range(2):
        slots.fill({1: {"lr": 0.5}})
        assert slots.claim(ELSEWHERE) is not None
    slots.bury()
    clock(29)
    storage.set_trial_user_attr(trial_id(study.trials[0]), BEAT, 1)  # slot 0 lives
    assert slots.bury() == []
    clock(2)
    assert slots.bury() == [1]
    slots.fill({})
    assert _states(study)[-1] == (1, "WAITING")
    assert study.trials[-1].system_attrs["fixed_params"] == {"lr": 0.5}
    clock(30)
    assert slots.bury() == [0]


@needs_proc
def test_a_process_of_this_machine_that_is_gone_needs_no_grace(
    study: optuna.Study, slots: Slots, clock: Callable[[float], None]
) -> None:
    me = myself()
    assert alive_here(me) is True
    assert alive_here({**me, "start": (me["start"] or 0) - 1}) is False  # its number went to another process
    assert alive_here(ELSEWHERE) is None
    assert alive_here(None) is None
    for owner in (me, {**me, "start": -1}):
        slots.fill({})
        slots.claim(owner)
    assert slots.bury() == [1]


@needs_proc
def test_a_child_that_has_ended_is_not_alive() -> None:
    reader, writer = os.pipe()
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "read line"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0)])
    who = {**myself(), "pid": child, "start": _start(child)}
    assert alive_here(who) is True
    os.write(writer, b"end\n")
    os.waitpid(child, 0)
    assert alive_here(who) is False
    os.close(reader)
    os.close(writer)


def _start(pid: int) -> int:
    from leakscope.audit.tuner_life import _start  # pyright: ignore[reportPrivateUsage]

    found = _start(pid)
    assert found is not None
    return found


@pytest.mark.parametrize(("why", "times"), [("ValueError: no", ERRORS), ("its process is gone", DEATHS)])
def test_a_slot_that_fails_again_and_again_is_given_up_but_breaks_do_not_count(
    study: optuna.Study, storage: InMemoryStorage, why: str, times: int
) -> None:
    slots = Slots(study, storage, 1, grace=30.0)
    for attempt in range(DEATHS + times):
        slots.fill({})
        trial = slots.claim(ELSEWHERE)
        assert trial is not None, attempt
        storage.set_trial_user_attr(trial_id(trial), WHY, INTERRUPTED if attempt < DEATHS else why)
        storage.set_trial_state_values(trial_id(trial), TrialState.FAIL)
    slots.fill({})
    assert slots.claim(ELSEWHERE) is None
    assert slots.ended()[0].state is TrialState.FAIL


def test_a_heart_beats_until_it_is_told_that_it_is_dead() -> None:
    beats: list[int] = []

    def beat(count: int) -> bool:
        beats.append(count)
        if count == 1:
            raise OSError("away for a moment")
        return count < 3

    pulse = Heartbeat(beat, every=0.001)
    with pulse:
        pulse._thread.join(60)  # pyright: ignore[reportPrivateUsage]
    assert beats == [1, 2, 3]
    assert pulse.lost
