"""A study: deterministic, resumed, pruned, labelled, and steered by nothing but what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from tuning_case import STEPS, run, tuning

import leakscope as ls
from leakscope.attacks.explain import matching_loss
from leakscope.audit import tuner_targets
from leakscope.audit.tuned import TUNED, read_tuned
from leakscope.audit.tuner_objective import oracle_judge
from leakscope.audit.tuner_space import Choice
from leakscope.audit.tuner_storage import open_storage, shown
from leakscope.errors import BadInput, MissingExtra
from leakscope.report.tuning import tuning_history
from leakscope.types import Callback, Progress


def _url(folder: Path, name: str = "study") -> str:
    return f"journal:{folder / name}.journal"


def test_a_study_that_was_broken_off_goes_on_to_the_same_trials(tmp_path: Path) -> None:
    whole = run(tuning(), _url(tmp_path, "whole"))
    steps = 0

    def counting(slot: int) -> Callback:
        def told(progress: Progress) -> None:
            nonlocal steps
            steps += 1

        return told

    half = run(tuning(), _url(tmp_path, "broken"), callback=counting, stop=lambda: steps >= 2 * STEPS + 7)
    assert len(half.rows) == 2  # the third was given back in the middle
    rest = []
    resumed = run(tuning(), _url(tmp_path, "broken"), ended=rest.append)
    assert [row.slot for row in rest] == [2, 3]
    assert [(r.slot, r.state, r.value, r.options) for r in resumed.rows] == [
        (r.slot, r.state, r.value, r.options) for r in whole.rows
    ]
    again = run(tuning(), _url(tmp_path, "broken"), ended=rest.append)  # nothing is left to do
    assert (again, len(rest)) == (resumed, 2)
    more = run(tuning(trials=5), _url(tmp_path, "broken"), ended=rest.append)  # more was asked for
    assert ([row.slot for row in rest], more.rows[:4]) == ([2, 3, 4], resumed.rows)


def test_the_first_trial_is_the_recipes_own_and_the_best_is_the_lowest_loss(tmp_path: Path) -> None:
    tuned = run(tuning(), _url(tmp_path))
    assert tuned.rows[0].options == {"tv": 1e-2, "lr": 0.1}
    assert tuned.best is not None
    assert tuned.best.value == min(row.value for row in tuned.rows if row.state == "complete" and row.value is not None)
    assert tuned.options == {"steps": STEPS, **tuned.best.options}


def test_trials_that_fall_behind_are_pruned_before_their_last_step(tmp_path: Path) -> None:
    steps: dict[int, int] = {}

    def counting(slot: int) -> Callback:
        def told(progress: Progress) -> None:
            steps[slot] = progress.step

        return told

    # One of the two rates gets nowhere: whoever draws it is behind the first trial, which takes the recipe's own.
    search = tuning(space={"lr": Choice(values=(0.1, 1e-6))}, trials=6, startup=1)
    tuned = run(search, _url(tmp_path), callback=counting)
    pruned = [row for row in tuned.rows if row.state == "pruned"]
    hopeless = [row for row in tuned.rows if row.options["lr"] == 1e-6]
    assert hopeless
    assert all(row in pruned for row in hopeless)
    assert all(steps[row.slot] < STEPS and row.why == "it fell behind" for row in pruned)
    assert tuned.best is not None
    assert tuned.best.options == {"lr": 0.1}
    kept = run(tuning(space=search.space, trials=6, pruner="none"), _url(tmp_path, "kept"))
    assert kept.count("complete") == 6


def test_realistic_and_oracle_are_told_apart_by_name_in_records_and_in_pictures(tmp_path: Path) -> None:
    real, ideal = (run(tuning(objective=o, trials=2), _url(tmp_path)) for o in ("realistic", "oracle"))
    assert (real.study, ideal.study) == ("small.realistic", "small.oracle")
    for tuned, word in ((real, "realistic"), (ideal, "ORACLE")):
        (tmp_path / TUNED).write_text(tuned.to_text(), encoding="utf-8")
        content = json.loads((tmp_path / TUNED).read_text(encoding="utf-8"))
        assert word in content["measure"]
        assert content["upper_bound"] is (word == "ORACLE")
        assert read_tuned(tmp_path / TUNED) == tuned
        assert tuning_history(tmp_path).stat().st_size > 1000
    assert ideal.best is not None
    assert ideal.best.value == max(row.value for row in ideal.rows if row.value is not None)


def test_a_realistic_search_never_touches_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(truth: ls.Batch) -> object:
        raise AssertionError("the truth was asked for")

    monkeypatch.setattr(tuner_targets, "oracle_judge", refuse)
    assert len(run(tuning(trials=1), _url(tmp_path)).rows) == 1
    with pytest.raises(AssertionError, match="the truth"):
        run(tuning(trials=1, objective="oracle"), _url(tmp_path))


def test_the_judges_know_the_truth_when_they_see_it() -> None:
    case = tuning().case
    truth, noise = case.batch, torch.rand(case.batch.images.shape, generator=torch.Generator().manual_seed(0))
    own = matching_loss(case.observe(), case.attack)
    assert own(truth.images, truth.labels) < 1e-5 < 1e-2 < own(noise, truth.labels)
    ideal = oracle_judge(truth)
    assert ideal(truth.images.flip(0), truth.labels.flip(0)) == pytest.approx(1.0)  # the order does not matter
    assert ideal(noise, truth.labels) < 0.5


def test_the_realistic_value_does_not_depend_on_the_weight_of_a_prior() -> None:
    case = tuning().case
    noise = torch.rand(case.batch.images.shape, generator=torch.Generator().manual_seed(0))
    values = {
        matching_loss(case.observe(), ls.attack("inverting-gradients", tv=tv))(noise, case.batch.labels)
        for tv in (1e-6, 1.0)
    }
    assert len(values) == 1


def test_another_search_under_the_same_name_is_refused(tmp_path: Path) -> None:
    run(tuning(trials=1), _url(tmp_path))
    with pytest.raises(BadInput, match=r"'small.realistic' tunes something else: its search space is"):
        run(tuning(trials=1, space={"lr": Choice(values=(0.1, 0.2))}), _url(tmp_path))


def test_an_attack_that_raises_is_recorded_and_raised(tmp_path: Path) -> None:
    def failing(slot: int) -> Callback:
        def told(progress: Progress) -> None:
            raise RuntimeError("the machine is on fire")

        return told

    with pytest.raises(RuntimeError, match="on fire"):
        run(tuning(trials=2), _url(tmp_path), callback=failing)
    after = run(tuning(trials=2), _url(tmp_path))  # the slot is tried again
    assert [row.state for row in after.rows] == ["complete", "complete"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"trials": 0}, "at least 1"), ({"space": {}}, "nothing to search"), ({"grace": 0.1}, "more than two beats")],
)
def test_searches_that_make_no_sense_are_refused(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        tuning(**changes)


def test_storages_that_cannot_be_opened_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakscope.audit.tuner_storage.time.sleep", lambda seconds: None)
    for url, expected in (
        ("study.db", "is no storage: give a URL"),
        ("journal:", "needs a file"),
        (f"journal:{tmp_path}", "cannot be opened"),
        ("nosql://here", "unknown kind of database"),
        (f"sqlite:///{tmp_path}/nowhere/study.db", "cannot be opened"),
    ):
        with pytest.raises(BadInput, match=expected):
            open_storage(url)
    assert shown("postgresql://me:secret@host/name") == "postgresql://me:***@host/name"
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"leakscope\[tune\]"):
        open_storage("journal:x")
