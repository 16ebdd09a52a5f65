"""Every misuse: one clear message on standard error, exit code 2, no traceback, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import leakscope as ls
from leakscope.cli import app

MLP = "leakscope:mlp?hidden=8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place with one good picture, one bad one, and weights of several kinds."""
    Image.new("RGB", (40, 32), (200, 30, 30)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_text("this is no picture")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("in the way")
    state = ls.load_model(MLP).state_dict()
    save_file({k: v.clone() for k, v in state.items()}, tmp_path / "fits.safetensors")
    nan = {k: v.clone() for k, v in state.items()}
    nan["fc1.weight"][0, 0] = float("nan")
    save_file(nan, tmp_path / "nan.safetensors")
    other = {k: v.clone() for k, v in state.items() if k != "head.bias"} | {"tail.bias": torch.zeros(3)}
    save_file(other, tmp_path / "other.safetensors")
    torch.save({"state_dict": {"f": print}}, tmp_path / "code.pt")
    return tmp_path


def _fails(arguments: list[str], *expected: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    text = " ".join(result.stderr.split())
    for words in expected:
        assert words in text, text
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([MLP, "{}/bad.png"], ["Error:", "bad.png' cannot be read as an image"]),
        ([MLP, "{}/nowhere.png"], ["no image or folder", "nowhere.png"]),
        ([MLP, "{}/empty"], ["The folder", "holds no images"]),
        ([MLP, "bundled:kat"], ["Unknown bundled image 'kat'", "Did you mean 'cat'?"]),
        ([MLP, "{}/good.png", "--labels", "10"], ["Label 10", "out of range", "0 to 9"]),
        ([MLP, "{}/good.png", "--labels", "1,2"], ["2 labels were given for 1 images"]),
        ([MLP, "{}/good.png", "--labels", "one"], ["--labels takes whole numbers", "'one'"]),
        ([MLP, "{}/good.png", "--attack", "inverting-gradient"], ["Did you mean 'inverting-gradients'?"]),
        ([MLP, "{}/good.png", "--steps", "-5"], ["steps is -5", "at least 1"]),
        ([MLP, "{}/good.png", "--restarts", "0"], ["population is 0", "at least 1"]),
        ([MLP, "{}/good.png", "--jobs", "-1"], ["workers is -1"]),
        ([MLP, "{}/good.png", "--batch-size", "0"], ["--batch-size is 0"]),
        ([MLP, "{}/good.png", "--threads", "0"], ["--threads is 0"]),
        ([MLP, "{}/good.png", "--seconds", "-1"], ["--seconds is -1", "more than 0"]),
        ([MLP, "{}/good.png", "--patience", "0"], ["--patience is 0"]),
        ([MLP, "{}/good.png", "--target", "nan"], ["--target is nan"]),
        ([MLP, "{}/good.png", "--seed", "-1"], ["-1 is not in the range"]),
        ([MLP, "{}/good.png", "--gradient", "quick"], ["quick", "exact"]),
        ([MLP, "{}/good.png", "--mode", "test"], ["test", "train"]),
        ([MLP, "{}/good.png", "--threat", "label"], ["Unknown threat model 'label'", "Did you mean 'labels'?"]),
        ([MLP, "{}/good.png", "--set", "tvv=1"], ["Unknown option of inverting-gradients 'tvv'", "Did you mean 'tv'?"]),
        ([MLP, "{}/good.png", "--set", "tv"], ["--set takes key=value", "lr, steps, tv"]),
        ([MLP, "{}/good.png", "--set", "tv=much"], ["--set tv=much", "must be a number"]),
        ([MLP, "{}/good.png", "--set", "steps=1.5"], ["--set steps=1.5", "whole number"]),
        ([MLP, "{}/good.png", "--set", "tv=inf"], ["finite"]),
        ([MLP, "{}/good.png", "--set", "tv=1", "--set", "tv=2"], ["given twice"]),
        ([MLP, "{}/good.png", "--steps", "3", "--set", "steps=4"], ["given twice"]),
        (["leakscope:mpl", "{}/good.png"], ["Unknown model 'mpl'", "Did you mean 'mlp'?"]),
        (["hub:resnet", "{}/good.png"], ["Unknown model source 'hub'"]),
        (["resnet18", "{}/good.png"], ["names no model", "timm:NAME"]),
        (["{}/net.py:make", "{}/good.png"], ["There is no file", "net.py"]),
        ([MLP, "{}/good.png", "--channels", "4"], ["4 channels", "1 (greyscale) or 3 (colour)"]),
        ([MLP, "{}/good.png", "--num-classes", "0"], ["num_classes must be at least 1"]),
        ([MLP, "{}/good.png", "--weights", "{}/none.safetensors"], ["There is no weights file"]),
        ([MLP, "{}/good.png", "--weights", "{}/file"], ["file'", "safetensors"]),
        ([MLP, "{}/good.png", "--weights", "{}/code.pt"], ["could run code"]),
        ([MLP, "{}/good.png", "--weights", "{}/nan.safetensors"], ["NaN", "fc1.weight"]),
        (
            [MLP, "{}/good.png", "--weights", "{}/other.safetensors"],
            ["does not fit", "missing: head.bias", "unexpected: tail.bias"],
        ),
        ([MLP, "{}/good.png", "{}/good.png", "--attack", "idlg"], ["iDLG's rule holds for one sample"]),
    ],
)
def test_invert(folder: Path, arguments: list[str], expected: list[str]) -> None:
    before = sorted(folder.rglob("*"))
    out = folder / "out"
    filled = [argument.replace("{}", str(folder)) for argument in arguments]
    steps = [] if any("steps" in argument for argument in filled) else ["--steps", "2"]
    _fails(["invert", *filled, *steps, "--out", str(out)], *expected)
    assert [path for path in sorted(folder.rglob("*")) if path != out] == before


def test_unwritable_output(folder: Path) -> None:
    arguments = ["invert", MLP, "bundled:cat", "--steps", "2", "--out", str(folder / "file" / "out")]
    _fails(arguments, "Cannot write to", "file/out", "Choose another output folder")
    _fails(["demo", "--out", str(folder / "file" / "out")], "Cannot write to")


def test_another_run_in_the_folder(folder: Path) -> None:
    out = ["--out", str(folder / "out")]
    assert CliRunner().invoke(app, ["invert", MLP, "bundled:cat", "--steps", "2", *out]).exit_code == 0
    _fails(["invert", MLP, "bundled:cat", "--steps", "3", *out], "holds another run", "--fresh")


def test_a_traceback_shows_no_local_variables() -> None:
    assert app.pretty_exceptions_show_locals is False  # they may hold private pixels


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["list", "atacks"], ["Unknown list 'atacks'", "Did you mean 'attacks'?"]),
        (["list"], ["Missing argument"]),
        (["describe", "leakscope:lenet"], ["Did you mean 'lenet-"]),
        (["describe", MLP, "--weights", "nowhere.pt"], ["There is no weights file 'nowhere.pt'"]),
        (["inver"], ["No such command", "invert"]),
        (["invert", MLP], ["Missing argument"]),
    ],
)
def test_other_commands(arguments: list[str], expected: list[str]) -> None:
    _fails(arguments, *expected)
