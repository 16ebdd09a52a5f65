"""Studies: every one runs, varies what it says, resumes, and makes a table and a figure."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import leakscope as ls
from leakscope.audit.record import read_record
from leakscope.audit.studies.architectures import FEASIBILITY, SMALL, beside
from leakscope.audit.studies.components import kinds
from leakscope.audit.studies.cut import cuts
from leakscope.audit.studies.layers import thirds
from leakscope.audit.study import STUDIES, Setup, conclusions, run_study
from leakscope.audit.study_cost import estimate_study
from leakscope.audit.study_models import Beside
from leakscope.audit.training_files import save_trained
from leakscope.cli import app
from leakscope.report.study_figure import study_figure
from leakscope.report.study_sheet import study_sheet

VIT = "timm:vit_tiny_patch16_224"


def setup(model="leakscope:lenet-dlg", size=16, images=("cat", "coffee"), attack="inverting-gradients", **options):
    return Setup(
        model=ls.load_model(model, num_classes=10, image_size=size, seed=0),
        batch=ls.bundled_batch(list(images), size=size),
        client=ls.FedSGD(),
        threat=ls.threats.WITH_LABELS,
        attack=attack,
        options=options or {"steps": 2},
    )


def batch_norm(size=12, **options):
    """A tiny residual network whose clients train in train mode, and a server with public images."""
    made = setup("leakscope:resnet20", size, ("cat", "coffee"), "feasibility", **(options or {"steps": 2}))
    made.model.load_state_dict({k: v + 0.1 * k.endswith("running_mean") for k, v in made.model.state_dict().items()})
    threat = ls.threats.WITH_LABELS.plus(ls.Knows.PUBLIC_DATA)
    return replace(made, threat=threat, public=ls.bundled_batch(["temple", "raccoon", "astronaut"], size=size))


CASES = {
    "batch-size": setup,
    "difficulty": setup,
    "statistics": lambda: batch_norm(),
    "layers": lambda: setup(VIT, 32, ("cat",)),
    "components": lambda: setup(VIT, 32, ("cat",)),
    "training-time": lambda: setup("leakscope:mlp?hidden=16", 8),
    "architectures": lambda: setup("leakscope:mlp?hidden=16", 32, ("cat",), steps=1),
    "cut": setup,
    "position": lambda: setup("leakscope:april-b?dim=64&depth=1", 16, ("cat",)),
    "defences": lambda: setup("leakscope:mlp?hidden=16", 8),
}


def test_every_study_is_tried_here():
    assert set(STUDIES) == set(CASES)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("architectures", "defences", "position")])
def test_a_study_makes_a_table_and_a_figure(name, tmp_path):
    made = CASES[name]()
    state = {key: value.clone() for key, value in made.model.state_dict().items()}
    study = STUDIES[name].value
    rows = run_study(study, made, tmp_path)
    assert len(rows) >= 2
    assert all(row.metrics for row in rows), [row.message for row in rows]
    assert len({row.metrics["psnr"] for row in rows}) > 1, "nothing varies"
    table = list(csv.DictReader((tmp_path / "table.csv").open(encoding="utf-8")))
    assert [row[study.x] for row in table] == [str(row.at[study.x]) for row in rows]
    with Image.open(study_figure(tmp_path)) as picture:
        assert picture.width > 800
    for key, value in made.model.state_dict().items():
        assert torch.equal(value, state[key]), "the model did not come back as it was"


def test_a_study_that_was_stopped_goes_on(tmp_path):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 3

    study = STUDIES["difficulty"].value
    assert len(run_study(study, setup(), tmp_path, stop=stop)) == 3
    written = {p: p.stat().st_mtime_ns for p in tmp_path.glob("points/*/record.json")}
    rows = run_study(study, setup(), tmp_path)
    assert len(rows) == 11
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())


def test_difficulty_starts_at_the_truth_and_ends_in_noise(tmp_path):
    rows = run_study(STUDIES["difficulty"].value, setup(steps=1), tmp_path)
    before = [row.extra["ssim before"] for row in rows]
    assert before[0] > 0.999
    assert before[-1] < 0.1
    assert before == sorted(before, reverse=True)
    # One step keeps the start, whose loss it measured: what was scored before is what the attack began with.
    assert [row.extra["moved"] for row in rows] == pytest.approx([0] * 11, abs=2e-3)


def test_moved_has_the_sign_of_what_the_attack_did(tmp_path):
    rows = run_study(STUDIES["difficulty"].value, setup(attack="idlg", images=("cat",), steps=6), tmp_path)
    for row in rows:
        assert row.extra["moved"] == pytest.approx(row.metrics["ssim"] - row.extra["ssim before"], abs=1e-9)
    assert max(row.extra["moved"] for row in rows) > 0.1


def test_models_beside_have_their_own_weights_and_say_how_well_they_were_trained(tmp_path):
    name = "leakscope:mlp?hidden=16"
    other = ls.load_model(name, num_classes=10, image_size=12, seed=5)
    save_trained(tmp_path / "w.safetensors", other, {"accuracy": 0.75})
    beside = (Beside.parse(f"{name}@{tmp_path / 'w.safetensors'}"), Beside.parse("leakscope:lenet-dlg"))
    made = replace(setup(name, 12, ("cat",), steps=1), beside=beside)
    rows = run_study(STUDIES["difficulty"].value, made, tmp_path / "out")
    assert len(rows) == 33
    by = {row.at["model"]: row for row in rows if row.at["noise"] == 1.0}
    assert list(by) == [name, f"{name}@w", "leakscope:lenet-dlg"]
    assert by[f"{name}@w"].extra["model accuracy"] == 0.75
    assert "model accuracy" not in by[name].extra
    records = [read_record(tmp_path / "out" / row.folder) for row in by.values()]
    assert len({record.energies for record in records}) == 3
    sheet = study_sheet(tmp_path / "out")
    with Image.open(sheet) as picture:
        assert picture.width > picture.height > 200
    with pytest.raises(ls.BadInput, match="of one model"):
        run_study(STUDIES["batch-size"].value, made, tmp_path / "none")
    with pytest.raises(ls.BadInput, match="NAME@WEIGHTS"):
        Beside.parse("leakscope:mlp@")
    with pytest.raises(ls.LeakscopeError):  # a model that was asked for is not passed over
        list(STUDIES["architectures"].value.make(replace(made, beside=(Beside(name="leakscope:swin-t-32"),))))


def test_statistics_are_compared_on_the_same_images_and_seeds(tmp_path):
    study = STUDIES["statistics"].value
    rows = run_study(study, batch_norm(), tmp_path)
    assert len(rows) == 3 * 2 * 3  # sources × images × seeds
    assert {row.at["statistics"] for row in rows} == {"running", "proxy", "exact"}
    records = {row.folder: read_record(tmp_path / row.folder) for row in rows}
    for row in rows:
        assert records[row.folder].evidence["statistics"] == row.at["statistics"]
    found = conclusions(study, rows, tmp_path)
    assert [line["runs"] for line in found] == [6, 6, 6]
    runs = {(row.at["statistics"], row.extra["image"], row.extra["seed"]): row.metrics["ssim"] for row in rows}
    gains = [value - runs["running", image, seed] for (source, image, seed), value in runs.items() if source == "exact"]
    assert found[2]["ssim gained"] == pytest.approx(sum(gains) / 6)
    assert "ssim gained" not in found[0]
    with pytest.raises(ls.BadInput, match="'inverting-gradients' has none"):
        list(study.make(setup()))
    for attack, runs in {"huang": "feasibility", "train-mode": "train-mode"}.items():
        assert {point.case.attack_name for point in study.make(replace(batch_norm(), attack=attack))} == {runs}


def test_architectures_have_a_closed_form_column(tmp_path):
    rows = run_study(STUDIES["architectures"].value, CASES["architectures"](), tmp_path)
    by = {(row.at["model"], row.at["attack"]): row for row in rows}
    assert by["timm:vit_tiny_patch16_224", "patch-embedding"].metrics["psnr"] > 60
    assert by["leakscope:resnet20", "patch-embedding"].status == "refused"
    assert len({row.at["model"] for row in rows}) >= 5
    content = json.loads((tmp_path / "study.json").read_text())
    assert content["study"] == "architectures"
    # Where BatchNorm makes the modes differ, both are there; a control stands beside every optimisation.
    assert ("leakscope:resnet20", "inverting-gradients (control)") in by
    found = {
        (line["model"], line["mode"]): line for line in conclusions(STUDIES["architectures"].value, rows, tmp_path)
    }
    assert {mode for model, mode in found if model == "leakscope:resnet20"} == {"eval", "train"}
    assert {mode for model, mode in found if model == "timm:vit_tiny_patch16_224"} == {"eval"}
    vit = found["timm:vit_tiny_patch16_224", "eval"]
    assert (vit["feasible"], vit["closed form"]) == ("no", "yes")  # one step brings nothing back, algebra all of it
    assert (vit["steps"], vit["best image"]) == (1, "cat")
    assert "patch-embedding" in vit["closed form by"]
    resnet = found["leakscope:resnet20", "train"]
    assert (resnet["feasible"], resnet["closed form"]) == ("no", "not run")
    assert "refused" in resnet["closed form by"]
    written = list(csv.DictReader((tmp_path / "conclusions.csv").open(encoding="utf-8")))
    assert [line["feasible"] for line in written] == [line["feasible"] for line in found.values()]
    study_figure(tmp_path)


def test_what_a_study_costs_is_known_before(tmp_path):
    study = STUDIES["batch-size"].value
    known = [seconds for _, seconds in estimate_study(study, setup(steps=100_000), tmp_path)]
    assert len(known) >= 2
    assert min(known) > 0
    assert not list(tmp_path.iterdir())
    assert sum(known) > 2 * sum(seconds for _, seconds in estimate_study(study, setup(steps=4), tmp_path))
    run_study(study, setup(steps=4), tmp_path)
    assert {seconds for _, seconds in estimate_study(study, setup(steps=4), tmp_path)} == {0}
    closed = setup("leakscope:mlp?hidden=16", 8, attack="linear-layer")
    known = [seconds for _, seconds in estimate_study(study, replace(closed, options={}), tmp_path / "closed")]
    assert set(known) == {None}


def test_a_model_of_the_feasibility_study_stands_beside_the_others_of_it():
    names = {entry for entry, _, _ in ls.models.list_models()}
    assert names >= set(FEASIBILITY)
    assert beside("leakscope:resnet18") == FEASIBILITY[1:]
    assert beside("leakscope:mlp") == SMALL
    made = replace(setup("leakscope:resnet18", 32, ("cat",)), client=ls.FedSGD(mode="train", share_buffers=True))
    first = next(iter(STUDIES["architectures"].value.make(made)))
    assert first.at == {"model": "leakscope:resnet18", "attack": "inverting-gradients", "mode": "train"}
    assert first.case.client == made.client


def test_parts_of_the_gradient_are_complete():
    vit = ls.load_model(VIT, num_classes=10, image_size=32, seed=0)
    names = {name for name, _ in vit.named_parameters()}
    for parts in (thirds(vit), kinds(vit)):
        assert sorted(n for part in parts.values() for n in part) == sorted(names)
    assert {"blocks 1–4", "blocks 5–8", "blocks 9–12", "input", "head"} <= set(thirds(vit))
    assert {"attention", "MLP", "patch embedding", "position embedding", "head"} <= set(kinds(vit))
    lenet = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=16, seed=0)
    assert list(thirds(lenet)) == ["block 1", "block 2", "block 3", "head"]
    assert len(cuts(vit)) == 8


def test_without_the_position_gradient_there_are_twins(tmp_path):
    """APRIL's: the distance of gradients says that the attack succeeded, the picture says otherwise."""
    made = setup("leakscope:april-b?dim=32&depth=1", 8, ("cat",), attack="idlg", steps=8)
    rows = run_study(STUDIES["position"].value, made, tmp_path)
    by = {(row.at["position gradient"], row.at["attack"]): row for row in rows}
    assert len(by) == 9
    assert by["shared", "idlg"].extra["finding"] == by["shared", "patch-embedding"].extra["finding"] == "recovered"
    assert by["withheld", "idlg"].extra["finding"] == "twin"
    assert by["withheld", "idlg"].extra["gradient distance"] < 0.02
    assert by["shared", "patch-embedding"].extra["gradient distance"] < 1e-2
    assert by["withheld", "patch-embedding"].status == "refused"
    for row in rows:
        if row.metrics:
            right, near = row.metrics["psnr"] >= 20, row.extra["gradient distance"] <= 0.1
            assert row.extra["finding"] == ("recovered" if right else "twin" if near else "missed")
    again = run_study(STUDIES["position"].value, made, tmp_path)
    assert [row.extra for row in again] == [row.extra for row in rows]
    table = list(csv.DictReader((tmp_path / "table.csv").open(encoding="utf-8")))
    assert {row["finding"] for row in table} >= {"recovered"}
    with pytest.raises(ls.BadInput, match="no position embedding"):
        run_study(STUDIES["position"].value, setup(), tmp_path / "other")


def test_the_command_plans_and_concludes(tmp_path, monkeypatch):
    monkeypatch.setattr("leakscope.audit.studies.architectures.SMALL", ())
    arguments = ["study", "architectures", "leakscope:mlp?hidden=16", "bundled:cat", "--image-size", "16"]
    arguments += ["--steps", "2", "--threat", "labels", "-o", str(tmp_path)]
    planned = CliRunner().invoke(app, [*arguments, "--plan"])
    assert planned.exit_code == 0, planned.output
    assert "closed forms take seconds" in " ".join(planned.output.split())
    assert not (tmp_path / "study.json").exists()
    done = CliRunner().invoke(app, [*arguments, "--no-estimate"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    (line,) = csv.DictReader((tmp_path / "conclusions.csv").open(encoding="utf-8"))
    assert (line["mode"], line["feasible"], line["closed form"]) == ("eval", "no", "yes")
    assert (tmp_path / "points" / line["picture"]).is_file()
    printed = " ".join(done.output.split())  # 80 columns are too few for a table: nothing is cut off all the same
    assert all(f"{key} {line[key]}" in printed for key in ("model", "verdict", "closed form by"))


def test_cuts_of_ones_own_choice_are_inverted_in_order_by_an_attack_that_is_fitted(tmp_path):
    out = tmp_path / "cut"
    command = ["study", "cut", "leakscope:lenet-dlg", "bundled:cat", "--image-size", "16", "--num-classes", "10"]
    command += ["--attack", "dci", "--set", "width=4", "--steps", "2", "--split-at", "act2,conv1", "--out", str(out)]
    refused = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "none")])
    assert [row["status"] for row in json.loads((tmp_path / "none" / "study.json").read_text())["rows"]] == [
        "refused"
    ] * 2, refused.output
    done = CliRunner().invoke(app, [*command, "--public", "bundled:coffee,temple,astronaut,raccoon"])
    assert done.exit_code == 0, done.output
    rows = json.loads((out / "study.json").read_text())["rows"]
    assert [(row["at"]["cut"], row["status"]) for row in rows] == [("1 conv1", "finished"), ("2 act2", "finished")]
    records = [read_record(out / row["folder"]) for row in rows]
    assert all("public data" in record.knows for record in records)
    assert len({record.evidence["inverter"] for record in records}) == 2  # each cut has its own
    with Image.open(out / "figure.png") as figure:
        assert figure.height > 800
