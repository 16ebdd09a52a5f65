"""What the command line says about a client, and that every command that takes clients takes all of it."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import leakscope as ls
from leakscope.cli import app
from leakscope.cli.client_options import ClientOptions

MODEL = ("leakscope:lenet-dlg", "bundled:cat", "--image-size", "16")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ls.FedSGD()),
        ({"mode": "train", "share_buffers": True}, ls.FedSGD(mode="train", share_buffers=True)),
        ({"trainable": ["fc.*"], "precision": "fp16"}, ls.FedSGD(trainable=("fc.*",), precision="fp16")),
        ({"local_steps": 3, "local_batch": 2}, ls.FedAvg(steps=3, batch_size=2)),
        (
            {
                "local_epochs": 2,
                "local_lr": 0.5,
                "momentum": 0.9,
                "nesterov": True,
                "order": "seeded",
                "send": "weights",
            },
            ls.FedAvg(epochs=2, optimiser=ls.Sgd(lr=0.5, momentum=0.9, nesterov=True), order="seeded", share="weights"),
        ),
        (
            {"local_steps": 1, "optimiser": "adamw", "weight_decay": 0.2, "accumulate": 2},
            ls.FedAvg(steps=1, optimiser=ls.adamw(weight_decay=0.2), accumulate=2),
        ),
        ({"split_at": "body.0"}, ls.Split(cut="body.0")),
        ({"micro_batch": 2}, ls.FedSGD(micro_batch=2)),
    ],
)
def test_options_make_the_client(given: dict[str, object], expected: object) -> None:
    assert ClientOptions(**given).client() == expected  # type: ignore[arg-type]


def test_an_augmenting_client_is_said_to_be_one() -> None:
    options = ClientOptions(augment=True)
    assert isinstance(options.client(), ls.Augmented)
    assert "augmented image" in options.notices()[0]
    assert ClientOptions().notices() == ()


@pytest.mark.parametrize("command", ["invert", "scan"])
def test_every_option_is_there(command: str) -> None:
    click = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    offered = {parameter.name for parameter in click.params}
    assert {field.name for field in fields(ClientOptions)} <= offered
    assert "client" not in offered


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--momentum", "0.9"), "--momentum is for a client that trains locally: add --local-steps"),
        (("--local-batch", "2"), "--local-batch is for a client that trains locally"),
        (("--split-at", "body.0", "--local-steps", "1"), "--split-at sends features"),
        (("--micro-batch", "1", "--local-steps", "1"), "--micro-batch is for a client that sends one gradient"),
        (("--local-steps", "0"), "steps is 0"),
        (("--local-steps", "1", "--optimiser", "adam", "--momentum", "0.9"), "'momentum' is no option of adam"),
        (("--trainable", "haed.*"), "matches no parameter"),
    ],
)
@pytest.mark.parametrize("command", ["invert", "scan"])
def test_what_does_not_go_together_is_refused(command: str, flags: tuple[str, ...], words: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command, *MODEL, "--out", str(tmp_path), *flags])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_a_run_against_local_training_is_recorded_as_one(tmp_path: Path) -> None:
    flags = ("--local-steps", "2", "--local-lr", "0.05", "--augment", "--steps", "2", "--out", str(tmp_path))
    result = CliRunner().invoke(app, ["invert", *MODEL, *flags])
    assert result.exit_code == 0, result.output
    assert "the augmented image" in " ".join(result.output.split())
    client = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))["client"]
    assert client["type"] == "Augmented"
    assert client["client"]["steps"] == 2
    assert client["client"]["optimiser"]["lr"] == 0.05


def test_the_decorator_leaves_the_command_its_name() -> None:
    from leakscope.cli.invert import invert

    assert invert.__name__ == "invert"
    assert inspect.getdoc(invert)
    assert "local_steps" in inspect.signature(invert).parameters
