"""Which image first? The cheap look ranks, the attack chooses, and both choices are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import leakscope as ls
from leakscope.audit.run import Case
from leakscope.audit.triage import Candidate, Ranking, agreement, candidates, look
from leakscope.cli import app


def case(model: str, names: list[str], size: int = 8, **options: object) -> Case:
    return Case(
        model=ls.load_model(model, image_size=size, seed=0),
        batch=ls.bundled_batch(names, size=size),
        client=ls.FedSGD(),
        threat=ls.threats.WITH_LABELS,
        attack_name="inverting-gradients",
        attack=ls.attack("inverting-gradients", steps=5),
        **options,
    )


def test_the_norm_is_that_of_the_images_own_update():
    whole = case("leakscope:resnet20", ["cat", "coffee", "brick"], size=12)  # no closed form fits it
    found = look(candidates(whole))
    assert [one.norm for one in found] == sorted((one.norm for one in found), reverse=True)
    assert {one.name for one in found} == {"cat", "coffee", "brick"}
    for one in found:
        alone = ls.Batch(images=whole.batch.images[[one.index]], labels=whole.batch.labels[[one.index]])
        seen = ls.observe(whole.model, alone, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(9))
        expected = torch.cat([value.flatten() for value in seen.signal.values()]).norm()
        assert one.norm == pytest.approx(float(expected), rel=1e-5)


def test_what_a_closed_form_explains_comes_first():
    found = look(candidates(case("leakscope:mlp?hidden=16", ["cat", "coffee"])))
    assert all(one.closed_form for one in found)
    assert all(one.residual < 1e-4 for one in found)
    unexplained = Candidate(index=9, name="x", norm=1e9)
    assert min([unexplained, *found], key=lambda one: one.promise) is found[0]


def test_two_choices():
    rows = (
        Candidate(index=0, name="a", norm=3.0, loss=0.2, ssim=0.5),
        Candidate(index=1, name="b", norm=2.0, loss=0.1, ssim=0.4),
        Candidate(index=2, name="c", norm=1.0, loss=0.3, ssim=0.1),
        Candidate(index=3, name="d", norm=9.0),
    )
    ranking = Ranking(model="m", attack="a", candidates=rows)
    assert ranking.realistic.name == "b"
    assert ranking.oracle.name == "a"
    assert agreement(rows) == pytest.approx(1.0)
    assert agreement(rows[:2]) is None
    flipped = [Candidate(index=0, name="", norm=float(n), ssim=s) for n, s in ((1, 0.9), (2, 0.5), (3, 0.5), (4, 0.1))]
    assert agreement(flipped) == pytest.approx(-0.949, abs=1e-3)  # scipy.stats.spearmanr gives this, ties and all


def test_the_command_ranks_and_resumes(tmp_path: Path):
    arguments = ["triage", "leakscope:resnet20", "bundled:cat,coffee,brick", "--image-size", "12", "--keep", "2"]
    arguments += ["--attack", "inverting-gradients", "--steps", "3", "-o", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "triage.json").read_text())
    assert [one["loss"] is not None for one in content["candidates"]] == [True, True, False]
    assert content["oracle"] in {"cat", "coffee", "brick"}
    assert "oracle: with the truth" in " ".join(done.output.split())
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0
    assert "nothing was run" in " ".join(again.output.split())
