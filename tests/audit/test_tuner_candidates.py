"""The feasibility study's search: the image is chosen with the settings, both measures are kept, then many runs."""

from __future__ import annotations

from pathlib import Path

from tuning_case import run, tuning
from typer.testing import CliRunner

from leakscope.audit.tuned import TUNED, read_tuned
from leakscope.audit.tuner_space import Choice, Range, default_space
from leakscope.audit.tuner_targets import Targets, target_case
from leakscope.cli import app


def test_the_studys_space_is_the_default_of_its_recipes():
    for name in ("feasibility", "huang"):
        assert default_space(name, {}) == {
            "tv": Range(low=1e-6, high=1e-1, log=True),
            "bn": Choice(values=(0.0, 1e-4, 1e-2)),
            "lr": Range(low=1e-4, high=1e2, log=True),
        }


def test_the_image_is_a_choice_like_any_other(tmp_path: Path):
    found = run(tuning(each=True, trials=6, pruner="none"), f"journal:{tmp_path / 'a.journal'}")
    assert found.rows[0].image == 0  # the first trial is the recipe's own, on the first image
    assert {row.image for row in found.rows} == {0, 1}
    assert all("image" not in row.options for row in found.rows)  # --set @tuned.json must take them
    assert found.realistic is found.best
    assert found.best.value == min(row.value for row in found.rows)
    (tmp_path / TUNED).write_text(found.to_text())
    assert read_tuned(tmp_path / TUNED) == found


def test_an_oracle_knows_what_the_attacker_would_have_chosen(tmp_path: Path):
    found = run(tuning(each=True, trials=2, objective="oracle"), f"journal:{tmp_path / 'a.journal'}")
    assert found.upper_bound
    assert found.best.value == max(row.value for row in found.rows)
    assert all(0 <= row.matching <= 2 for row in found.rows)  # a cosine distance
    assert found.realistic.matching == min(row.matching for row in found.rows)


def test_each_target_is_one_image():
    search = tuning(each=True)
    targets = Targets(search.case, "realistic", each=True)
    assert targets.indices == (0, 1)
    assert targets[1].observation.input.batch_size == 1
    assert target_case(search.case, 1).batch.names == search.case.batch.names[1:]
    assert target_case(search.case, None) is search.case


def test_runs_follow_on_the_command_line(tmp_path: Path):
    arguments = ["tune", "leakscope:mlp?hidden=8", "bundled:cat,coffee", "--image-size", "12", "--steps", "5"]
    arguments += ["--trials", "2", "--each", "--runs", "3", "--threat", "labels", "-o", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "3 runs: SSIM" in said
    assert "(ORACLE)" in said
    assert "(realistic)" in said
    assert len(list((tmp_path / "runs").glob("*/record.json"))) == 3
