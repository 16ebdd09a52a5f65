"""The commands as a user runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

import leakscope as ls
from leakscope.audit.record import read_record
from leakscope.cli import app
from leakscope.cli.progress import Watch
from leakscope.random import fork

MLP = "leakscope:mlp?hidden=8"


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_version() -> None:
    assert _run("--version").stdout.strip() == f"leakscope {version('leakscope')}"


def test_help_names_every_command() -> None:
    text = _run("--help").stdout
    for words in ("demo", "audit", "report", "invert", "list", "describe", "--version", "curious server"):
        assert words in text
    text = " ".join(_run("invert", "--help").stdout.split())
    for option in ("--attack", "--labels", "--batch-size", "--mode", "--threat", "--restarts", "--set", "--fresh"):
        assert option in text
    assert CliRunner().invoke(app, []).exit_code == 2  # help, as for any missing command


def test_list_shows_every_entry_with_its_paper() -> None:
    attacks = " ".join(_run("list", "attacks").stdout.split())
    for name in ls.ATTACKS:
        assert name in attacks
    assert "Geiping et al., NeurIPS 2020" in attacks
    models = _run("list", "models").stdout
    assert all(f"leakscope:{name}" in models for name in ls.MODELS)
    assert "timm:NAME" in models
    metrics = _run("list", "metrics").stdout
    assert all(name in metrics for name in ls.METRICS)
    assert "gaussian-noise" in _run("list", "defences").stdout
    assert "difficulty" in _run("list", "studies").stdout


def test_describe_shows_the_anatomy(tmp_path: Path) -> None:
    text = _run("describe", MLP, "--num-classes", "7", "--image-size", "16", "--channels", "1").stdout
    assert re.search(r"classes\s+7", text)
    assert "1 × 16 × 16 pixels" in text
    assert "head.weight + bias" in text


def test_invert_writes_pairs_record_sheet_and_curve(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = _run("invert", MLP, "bundled:astronaut,cat", "--steps", "5", "--seed", "3", "--out", out)
    names = {path.name for path in out.iterdir() if path.is_file()}
    pairs = {f"{kind}-{index}.png" for kind in ("original", "reconstruction") for index in (0, 1)}
    assert names == pairs | {"record.json", "contact-sheet.png", "loss.png", "reconstruction.safetensors"}
    for words in ("astronaut", "cat", "psnr ↑", "chance", str(out / "record.json"), str(out / "contact-sheet.png")):
        assert words in result.stdout
    assert "random weights (seed 0)" in result.stderr
    record = read_record(out)
    assert (record.attack, record.steps, record.seed, record.status) == ("inverting-gradients", 5, 3, "finished")


def test_invert_is_the_python_api(tmp_path: Path) -> None:
    _run("invert", MLP, "bundled:cat", "--steps", "5", "--seed", "3", "--set", "tv=0.5", "--out", tmp_path)
    root = torch.Generator().manual_seed(3)
    seen = ls.observe(
        ls.load_model(MLP),
        ls.bundled_batch(["cat"], size=32),
        protocol=ls.FedSGD(),
        generator=fork(root, "batch/0/client"),
    )
    back = ls.attack("inverting-gradients", steps=5, tv=0.5)(seen, generator=fork(root, "batch/0/attack"))
    assert torch.equal(load_file(tmp_path / "reconstruction.safetensors")["images"], back.images)
    assert read_record(tmp_path).energy == back.energy


def test_options_reach_the_record(tmp_path: Path) -> None:
    options = "--steps 4 --restarts 2 --gradient exact --patience 3 --target 1e-9 --seconds 60 --set lr=0.2"
    client = "--mode train --reduction sum --share-buffers --threat statistics --labels 6 --model-seed 5 --threads 1"
    _run("invert", "leakscope:resnet20", "bundled:cat", *options.split(), *client.split(), "--out", tmp_path)
    record = read_record(tmp_path)
    settings = json.loads((tmp_path / "record.json").read_text())["settings"]
    assert (settings["steps"], settings["population"], settings["gradient"]) == (4, 2, "exact")
    assert settings["stop"] == {"type": "Stop", "seconds": 60, "target": 1e-9, "patience": 3, "tolerance": 1e-4}
    assert settings["optimiser"]["lr"] == 0.2
    assert record.client["mode"] == "train"
    assert record.client["reduction"] == "sum"
    assert record.client["share_buffers"] is True
    assert "normalisation statistics" in record.knows
    assert record.pictures[0].label == 6
    assert record.target.fingerprint == ls.load_model("leakscope:resnet20", seed=5).fingerprint()
    assert len(record.energies) == len(record.trace) == 2


def test_weights_from_a_file_are_used(tmp_path: Path) -> None:
    trained = ls.load_model(MLP, seed=9)
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    result = _run(
        "invert", MLP, "bundled:cat", "--steps", "2", "--weights", tmp_path / "weights.pt", "--out", tmp_path / "out"
    )
    assert read_record(tmp_path / "out").target.fingerprint == trained.fingerprint()
    assert "random weights" not in result.stderr


def test_batches_go_to_folders_of_their_own_and_one_sheet_shows_all(tmp_path: Path) -> None:
    source = "bundled:astronaut,cat,coffee"
    _run("invert", MLP, source, "--batch-size", "2", "--steps", "3", "--out", tmp_path)
    assert [p.name for p in read_record(tmp_path / "batch-0").pictures] == ["astronaut", "cat"]
    assert [p.name for p in read_record(tmp_path / "batch-1").pictures] == ["coffee"]
    with (
        Image.open(tmp_path / "contact-sheet.png") as whole,
        Image.open(tmp_path / "batch-0/contact-sheet.png") as part,
    ):
        assert whole.height > part.height
    assert not (tmp_path / "record.json").exists()


def test_the_same_command_again_returns_what_is_there(tmp_path: Path) -> None:
    command = ("invert", MLP, "bundled:cat", "--steps", "3", "--out", tmp_path)
    _run(*command)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = _run(*command)
    assert "This run ended before" in again.stderr
    assert "psnr" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert "This run ended before" not in _run(*command, "--fresh").stderr


def test_files_are_fitted_and_it_is_said(tmp_path: Path) -> None:
    Image.new("RGBA", (60, 40), (10, 200, 30, 128)).save(tmp_path / "a[b].png")
    result = _run("invert", MLP, tmp_path / "a[b].png", "--steps", "2", "--out", tmp_path / "out")
    assert "transparency dropped" in result.stderr
    assert "cropped around the centre and resized to 32 × 32 px" in result.stderr
    assert "a[b].png" in result.stdout  # square brackets are no markup
    grey = _run("invert", MLP, tmp_path / "a[b].png", "--channels", "1", "--steps", "2", "--out", tmp_path / "grey")
    assert "colour turned into greyscale" in grey.stderr
    with Image.open(tmp_path / "grey" / "original-0.png") as picture:
        assert picture.mode == "L"


def test_the_default_folder_is_named_after_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run("invert", MLP, "bundled:cat", "--steps", "2")
    assert (tmp_path / "out" / "inverting-gradients-leakscope-mlp-hidden-8" / "record.json").exists()


def test_a_model_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def make(num_classes=4):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, num_classes))\n"
    )
    result = _run(
        "invert",
        f"{tmp_path}/net.py:make",
        "bundled:cat",
        "--image-size",
        "8",
        "--steps",
        "2",
        "--out",
        tmp_path / "out",
    )
    assert read_record(tmp_path / "out").target.num_classes == 4
    assert "random weights" not in result.stderr  # the factory may well have loaded some


def _ctrl_c_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Watch, progress: ls.Progress) -> None:
        if progress.step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "__call__", stop)


def test_ctrl_c_ends_with_130_and_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ctrl_c_at(3, monkeypatch)
    command = ["invert", MLP, "bundled:cat,coffee", "--batch-size", "1", "--steps", "9", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 130
    assert "no checkpoint was due yet" in result.stderr
    assert read_record(tmp_path / "batch-0").status == "interrupted"
    assert not (tmp_path / "batch-1").exists()
    assert (tmp_path / "contact-sheet.png").exists()


def test_ctrl_c_outside_an_attack_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("leakscope.audit.images.load_images", stop)
    result = CliRunner().invoke(app, ["invert", MLP, "bundled:cat", "--out", str(tmp_path)])
    assert result.exit_code == 130
    assert "Interrupted." in result.stderr


def test_the_librarys_warnings_are_shown(tmp_path: Path) -> None:
    """A checkpoint of another run, whose record is gone, is passed over: people should know."""
    _run("invert", MLP, "bundled:cat", "--steps", "3", "--out", tmp_path)
    (tmp_path / "record.json").unlink()
    assert "belongs to another run" in _run("invert", MLP, "bundled:cat", "--steps", "4", "--out", tmp_path).stderr
