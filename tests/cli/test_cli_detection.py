"""A detector on the command line and in a campaign: boxes from a file, a record, pictures."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file
from typer.testing import CliRunner

from leakscope.audit.campaign_file import parse_campaign
from leakscope.audit.cell import Role
from leakscope.audit.cell_run import run_cell
from leakscope.audit.plan import cells_of
from leakscope.audit.record import read_record
from leakscope.cli import app

BOXES = {"cat": [[1, 0.5, 0.5, 0.9, 0.9], [0, 0.25, 0.25, 0.2, 0.2]], "coffee": [[2, 0.5, 0.5, 0.5, 0.5]]}
MODEL = ("leakscope:yolov8n", "--image-size", "64", "--num-classes", "3")


def run(*arguments: str | Path):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_invert_writes_a_record_and_pictures(tmp_path: Path):
    (tmp_path / "boxes.json").write_text(json.dumps(BOXES))
    options = ("--labels-file", tmp_path / "boxes.json", "--steps", "2", "--mode", "train", "-o", tmp_path / "out")
    done = run("invert", MODEL[0], "bundled:cat,coffee", *MODEL[1:], *options, "--threat", "labels")
    assert done.exit_code == 0, done.output
    record = read_record(tmp_path / "out")
    assert [picture.label for picture in record.pictures] == ["2 boxes", "1 box"]
    assert record.status == "finished"
    assert (tmp_path / "out" / "contact-sheet.png").stat().st_size > 1000
    kept = load_file(tmp_path / "out" / "reconstruction.safetensors")["labels"]
    assert sorted(kept[:, :, 0].sort(dim=1).values.tolist()) == [[-1, 2], [0, 1]]
    # The same command is done; a server that does not know the boxes has no way to replay.
    again = run("invert", MODEL[0], "bundled:cat,coffee", *MODEL[1:], *options, "--threat", "labels")
    assert again.exit_code == 0
    hidden = run("invert", MODEL[0], "bundled:cat,coffee", *MODEL[1:], *options, "--fresh")
    assert hidden.exit_code == 2
    assert "needs labels" in " ".join(hidden.output.split())


def test_boxes_and_classes_are_not_mixed_up(tmp_path: Path):
    (tmp_path / "boxes.json").write_text(json.dumps(BOXES))
    both = run("scan", MODEL[0], "bundled:cat", *MODEL[1:], "--labels", "1", "--labels-file", tmp_path / "boxes.json")
    assert both.exit_code == 2
    assert "give one of them" in " ".join(both.output.split())
    bare = run("scan", MODEL[0], "bundled:cat", *MODEL[1:], "-o", tmp_path / "scan")
    assert bare.exit_code == 2
    assert "learns from boxes" in " ".join(bare.output.split())


def test_a_campaign_takes_a_detector_and_depends_on_its_boxes(tmp_path: Path):
    (tmp_path / "boxes.json").write_text(json.dumps(BOXES))
    campaign = parse_campaign(
        """
        name = "detector"
        [models.yolo]
        name = "leakscope:yolov8n"
        image_size = 64
        num_classes = 3
        [images.photos]
        from = ["bundled:cat,coffee"]
        labels_file = "boxes.json"
        batch_size = 1
        [clients.sgd]
        type = "fedsgd"
        mode = "train"
        [attackers.labels]
        rung = "labels"
        [attacks.matching]
        type = "inverting-gradients"
        steps = 2
        [[targets]]
        models = ["yolo"]
        images = ["photos"]
        clients = ["sgd"]
        [controls]
        prior_only = false
        self_tests = false
        identifiability = false
        """
    )
    cells = [cell for cell in cells_of(campaign, tmp_path) if cell.role is Role.ATTACK]
    assert len(cells) == 2
    record = run_cell(cells[0], tmp_path / "out", base=tmp_path)
    assert record.status == "finished"
    assert record.pictures[0].label == "2 boxes"
    (tmp_path / "boxes.json").write_text(json.dumps(BOXES | {"cat": []}))
    moved = [cell for cell in cells_of(campaign, tmp_path) if cell.role is Role.ATTACK]
    assert {cell.key for cell in moved}.isdisjoint(cell.key for cell in cells)
