"""Robustness of fitted attacks: each condition differs in what it says, resumes, and stands beside the mean image."""

import csv
import json
import zipfile
from dataclasses import replace

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import leakscope as ls
from leakscope.audit.labelled import load_drawn
from leakscope.audit.robustness import run_robustness
from leakscope.audit.robustness_conditions import Robustness, conditions
from leakscope.audit.study import Setup
from leakscope.cli import app
from leakscope.report.study_figure import study_figure

SMALL = {"steps": 2, "hidden": 8, "bins": 128, "evidence": False}


def pictures(count, seed):
    """Slopes of random colour, 8 px, four classes in turn."""
    draw = torch.rand(count, 3, 2, generator=torch.Generator().manual_seed(seed))
    axis = torch.linspace(-0.5, 0.5, 8)
    slopes = draw[..., 0, None, None] * axis[:, None] + draw[..., 1, None, None] * axis
    return ls.Batch(images=(0.5 + 0.9 * slopes).clamp(0, 1), labels=torch.arange(count) % 4)


def asked(*questions, attack="git-coarse", options=None, **settings):
    setup = Setup(
        model=ls.load_model("leakscope:lenet-lti", num_classes=4, image_size=8, seed=0),
        batch=pictures(8, 1),
        client=ls.FedSGD(),
        threat=ls.threats.HONEST_SERVER,
        attack=attack,
        options=SMALL if options is None else options,
    )
    return Robustness(setup=setup, public=pictures(60, 2), questions=questions, **settings)


def by_name(rows):
    return {row.at["condition"]: row for row in rows}


def test_noise_hurts_and_knowing_it_helps(tmp_path):
    rows = by_name(run_robustness(asked("noise", noises=(0.0, 0.05)), tmp_path))
    none, known, unknown = (rows[name].metrics["mse"] for name in rows)
    assert list(rows) == ["none", "0.05, fitted with it", "0.05, fitted without"]
    assert none < known < unknown
    blank = rows["none"].extra["mse of the mean image"]
    truth = pictures(8, 1).images
    assert none < blank == pytest.approx(float((truth - pictures(60, 2).images.mean(0)).square().mean()), rel=0.05)


def test_trained_clients_move_away_and_the_model_stays(tmp_path):
    made = asked("weights", epochs=(1, 5), shares=(0.5,), lr=0.5)
    before = made.setup.model.fingerprint()
    rows = run_robustness(made, tmp_path)
    assert [row.extra.get("weights moved by", 0) for row in rows] == sorted(
        row.extra.get("weights moved by", 0) for row in rows
    )
    assert rows[2].extra["weights moved by"] > 0
    assert rows[2].metrics["mse"] > rows[0].metrics["mse"]
    assert made.setup.model.fingerprint() == before
    assert len(list((tmp_path / "fits").iterdir())) == 1  # one fit meets all clients


def test_halves_of_the_classes_do_not_meet():
    made = asked("shift")
    own, other, photographs = conditions(made)
    assert set(own.public.labels.tolist()) == {0, 1}
    assert set(made.setup.batch.labels[own.rows].tolist()) == {0, 1}
    assert set(made.setup.batch.labels[other.rows].tolist()) == {2, 3}
    assert other.public is own.public
    assert photographs.public.images.shape[1:] == (3, 8, 8)
    assert "crops" in photographs.name
    assert conditions(replace(made, elsewhere=pictures(9, 5)))[2].public.images.shape[0] == 9


def test_fewer_pairs_and_a_wrong_depth(tmp_path):
    rows = by_name(run_robustness(asked("pairs", "architecture", fewer=0.1), tmp_path))
    assert rows["6 of them"].metrics["mse"] > rows["all 60 images"].metrics["mse"]
    assert rows["1 link fewer"].metrics["mse"] > rows["as it is"].metrics["mse"]
    assert rows["1 link more"].metrics["mse"] != rows["as it is"].metrics["mse"]
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [line["condition"] for line in lines] == list(rows)
    assert float(lines[0]["psnr of the mean image"]) < float(lines[0]["psnr"])
    assert study_figure(tmp_path).exists()


def test_what_is_done_is_not_done_again(tmp_path):
    made, told = asked("noise", "weights", noises=(0.0, 0.1), epochs=(1,), shares=(0.1,)), []
    steps = []
    some = run_robustness(
        made,
        tmp_path,
        stop=lambda: len(told) > 3,
        told=lambda condition, *_: told.append(condition.name),
        callback=steps.append,
    )
    assert len(some) == 3
    count = len(steps)
    whole = run_robustness(made, tmp_path, callback=steps.append)
    assert len(steps) == count + 1  # no fit is repeated: this is the one epoch of the client that was left
    assert [row.metrics for row in whole[:3]] == [row.metrics for row in some]
    assert len(json.loads((tmp_path / "study.json").read_text())["rows"]) == len(whole) == 5
    with pytest.raises(ls.BadInput, match="another run"):
        run_robustness(replace(made, public=pictures(50, 3)), tmp_path)


def test_refusals():
    with pytest.raises(ls.BadInput, match="not fitted"):
        asked("noise", attack="inverting-gradients", options={})
    with pytest.raises(ls.UnknownName, match="question"):
        asked("noice")
    with pytest.raises(ls.BadInput, match="8 private images are among the public"):
        replace(asked("noise"), public=pictures(8, 1))
    assert conditions(asked("architecture", attack="lti", options={"steps": 1})) == []


def test_a_zip_gives_the_server_train_and_the_clients_test(tmp_path):
    path, picture = tmp_path / "data.zip", tmp_path / "picture.png"
    with zipfile.ZipFile(path, "w") as archive:
        for grey, place in enumerate(("train/a/0", "train/b/1", "test/b/2")):
            Image.new("RGB", (8, 8), (grey, grey, grey)).save(picture)
            archive.write(picture, f"data/{place}.png")
    spec = asked("noise").setup.model.input
    public, private = (
        load_drawn([str(path)], spec, part, 9, generator=torch.Generator().manual_seed(0)) for part in ("train", "test")
    )
    assert public.labels.tolist() == [0, 1]
    assert (private.labels.tolist(), private.names) == ([1], ("b/2.png",))
    assert len(load_drawn([str(path)], spec, "train", 1, generator=torch.Generator().manual_seed(0))) == 1


def test_the_command(tmp_path):
    line = (
        "robustness leakscope:lenet-lti bundled:cat,coffee --public bundled:raccoon,temple,flower,retina "
        "--image-size 8 --question noise --noises 0,0.1 --steps 1 --set bins=64 --set hidden=4 --out"
    )
    result = CliRunner().invoke(app, [*line.split(), str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "2/3 noise: 0.1, fitted with it (about" in result.output
    assert "mean image" in result.output
    assert (tmp_path / "figure.png").exists()
