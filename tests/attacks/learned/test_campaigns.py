"""Learned attacks in campaigns and on the command line."""

import json
from dataclasses import replace

from typer.testing import CliRunner

from leakscope.attacks import known_to_leak
from leakscope.audit.cell import Role
from leakscope.audit.cell_run import run_cell
from leakscope.audit.plan import _self_test, ladder
from leakscope.cli.app import app

MODEL = ["leakscope:mlp?hidden=16", "--image-size", "8", "--num-classes", "10"]


def run(*arguments):
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_server_with_public_images_has_a_learned_rung():
    assert "learned" not in [rung.name for rung in ladder({"type": "fedsgd"})]
    assert [r.attack for r in ladder({"type": "fedsgd"}, public=True) if r.name == "learned"] == ["git-coarse"]
    assert [r.attack for r in ladder({"type": "split"}, public=True) if r.name == "learned"] == ["dci"]


def test_its_self_test_gets_through(tmp_path):
    rung = next(rung for rung in ladder({"type": "fedsgd"}, public=True) if rung.name == "learned")
    cell = _self_test(rung)
    record = run_cell(cell, tmp_path, base=tmp_path)
    assert cell.role is Role.SELF_TEST
    psnr = json.loads((tmp_path / "record.json").read_text())["scores"]["metrics"]["psnr"]
    assert min(psnr) > known_to_leak("git-coarse").psnr + 5, record.message


def test_a_campaigns_budget_of_seconds_reaches_the_fit(tmp_path):
    rung = next(rung for rung in ladder({"type": "fedsgd"}, public=True) if rung.name == "learned")
    cell = replace(_self_test(rung), seconds=0.01)
    record = run_cell(cell, tmp_path, base=tmp_path)
    assert record.status == "out of time"
    assert "were up" in record.message


def test_fit_then_invert(tmp_path):
    file = tmp_path / "a.safetensors"
    said = run("fit", *MODEL, "bundled:astronaut,coffee,temple,flower", "--steps", 3, "--out", file)
    assert "3 steps" in said
    run("invert", *MODEL, "bundled:cat", "--inverter", file, "--out", tmp_path / "one")
    record = json.loads((tmp_path / "one" / "record.json").read_text())
    assert record["attack"] == "git-coarse"
    assert "public data" in record["knows"]
    assert min(record["scores"]["metrics"]["psnr"]) > 60
    run("invert", *MODEL, "bundled:cat", "--start", file, "--steps", 2, "--out", tmp_path / "two")
    started = json.loads((tmp_path / "two" / "record.json").read_text())
    assert min(started["scores"]["metrics"]["psnr"]) > 30
    refused = CliRunner().invoke(app, ["invert", *MODEL, "bundled:cat,coffee", "--inverter", str(file)])
    assert refused.exit_code == 2


def test_describe_shows_the_modules():
    said = run("describe", "leakscope:lenet-lti", "--image-size", "16")
    assert "bootstrap (fc)" in said
    assert said.index("bootstrap (fc)") < said.index("conv3: G(conv3)") < said.index("conv1: G(conv1)")
