"""check, gate and lint as a user runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

import leakscope as ls
from leakscope.capture import Update, save_update
from leakscope.cli import app

MLP, SIZE = "leakscope:mlp?hidden=16", 16
MODEL = ["--model", MLP, "--image-size", str(SIZE), "--num-classes", "10"]
CAT = ["bundled:cat", "--labels", "1"]
LR = 0.05


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def update() -> Update:
    """One step of SGD on one photograph, by torch itself."""
    model = ls.load_model(MLP, image_size=SIZE, num_classes=10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = ls.bundled_batch(["cat"], size=SIZE, labels=[1])
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    torch.nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
    optimiser.step()
    return Update(
        kind="weights", sent=model.state_dict(), received=before, client="4", round=2, metadata={"lr": LR, "steps": 1}
    )


@pytest.fixture
def capture(update, tmp_path) -> Path:
    return save_update(update, tmp_path / "capture")


def test_a_check_confirms(capture):
    result = run("check", capture, *MODEL, "--batch", *CAT)
    assert result.exit_code == 0, result.output
    for words in ("client 4, round 2", "learning rate", "0.05", "replay error", "Fit to be attacked."):
        assert words in result.output


def test_a_check_without_images_says_that_nothing_confirms_it(capture):
    result = run("check", capture, *MODEL)
    assert result.exit_code == 0
    assert "not confirmed by a replay" in result.output


def test_a_check_refuses_and_explains(capture):
    result = run("check", capture, *MODEL, "--batch", *CAT, "--local-steps", "1", "--local-lr", "0.2")
    assert result.exit_code == 1
    assert "the learning rate is 0.05" in " ".join(result.output.split())


def test_a_check_of_two_files(update, tmp_path):
    save_file(dict(update.received), tmp_path / "before.safetensors")
    torch.save(dict(update.sent), tmp_path / "after.pt")
    before = ["--before", tmp_path / "before.safetensors"]
    result = run("check", tmp_path / "after.pt", *before, *MODEL, "--batch", *CAT)
    assert result.exit_code == 0, result.output
    missing = run("check", tmp_path / "after.pt", *MODEL)
    assert missing.exit_code == 2
    assert "--before" in missing.output


def test_misuse_of_check(capture, tmp_path):
    for arguments in (
        ["check", tmp_path / "nowhere", *MODEL],
        ["check", capture, "--model", "leakscope:no-such"],
        ["check", capture, *MODEL, "--labels", "1"],
        ["check", capture, *MODEL, "--split-at", "0"],
        ["check", capture],
    ):
        assert run(*arguments).exit_code == 2
    other = run("check", capture, "--model", "leakscope:lenet-dlg", "--num-classes", "10")
    assert other.exit_code == 1
    assert "The model has no" in other.output


def test_a_gate_withholds_and_logs(capture, tmp_path):
    log = tmp_path / "logs" / "gate.jsonl"
    for _ in range(2):
        result = run("gate", capture, *MODEL, "--images", *CAT, "--seconds", "600", "--log", log)
        assert result.exit_code == 3, result.output
        assert "withheld" in result.output
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["send"] for line in lines] == [False, False]
    assert "cat" not in log.read_text()


def test_a_gate_lets_through(capture):
    lax = ["--psnr", "1000", "--ssim", "2", "--steps", "2", "--seconds", "600"]
    result = run("gate", capture, *MODEL, "--images", *CAT, *lax)
    assert result.exit_code == 0, result.output
    assert "may be sent" in result.output


def test_a_gate_that_cannot_tell_withholds(update, capture, tmp_path):
    assert run("gate", capture, *MODEL, "--images", "bundled:coffee", "--labels", "1").exit_code == 3
    sent = {name: value + float("nan") for name, value in update.sent.items()}
    broken = save_update(replace(update, sent=sent), tmp_path / "broken")
    assert run("gate", broken, *MODEL, "--images", *CAT).exit_code == 3
    for misuse in (["--steps", "0"], ["--seconds", "-1"], ["--psnr", "nan"], ["--log", capture]):
        assert run("gate", capture, *MODEL, "--images", *CAT, *misuse).exit_code == 2
    assert run("gate", tmp_path, *MODEL, "--images", *CAT).exit_code == 2
    assert run("gate", capture, *MODEL).exit_code == 2


def test_lint(tmp_path):
    size = ["--image-size", "16", "--num-classes", "10"]
    clean = run("lint", MLP, *size)
    assert clean.exit_code == 0
    assert "no proof" in clean.output
    model = ls.load_model(MLP, image_size=SIZE, num_classes=10)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first = model.anatomy.first_layer.weight
    state[first] = torch.ones_like(state[first]) / 768
    save_file(state, tmp_path / "planted.safetensors")
    result = run("lint", MLP, *size, "--weights", tmp_path / "planted.safetensors")
    assert result.exit_code == 1
    assert first in result.output
    assert "imprint layer (high confidence)" in result.output
    save_file(dict(model.state_dict()), tmp_path / "reference.safetensors")
    options = ["--weights", tmp_path / "planted.safetensors", "--reference", tmp_path / "reference.safetensors"]
    assert run("lint", MLP, *size, *options).exit_code == 1


def test_lint_runs_nothing_that_a_server_sends(tmp_path):
    class Evil:
        def __reduce__(self) -> object:
            return eval, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    torch.save({"weight": Evil()}, tmp_path / "evil.pt")
    assert run("lint", MLP, "--weights", tmp_path / "evil.pt").exit_code == 2
    assert not (tmp_path / "ran").exists()


def test_the_commands_are_in_the_help():
    text = run("--help").output
    assert all(command in text for command in ("check", "gate", "lint"))
