"""init, plan and audit on the command line, as a new user would run them."""

import json
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from leakscope.cli.app import app

CAMPAIGN = """
name = "tiny"
[models.lenet]
name = "leakscope:lenet-dlg"
image_size = 8
[images.photos]
from = ["bundled:cat"]
[clients.sgd]
type = "fedsgd"
[attacks.linear]
type = "exact-git"
[attacks.matching]
type = "inverting-gradients"
steps = STEPS
[[targets]]
models = ["lenet"]
images = ["photos"]
clients = ["sgd"]
[controls]
self_tests = false
identifiability = false
"""


def run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def campaign(tmp_path):
    def write(steps=5, text=CAMPAIGN):
        path = tmp_path / "campaign.toml"
        path.write_text(text.replace("STEPS", str(steps)))
        return path

    return write


def test_init_writes_a_file_that_plan_takes(tmp_path):
    path = tmp_path / "mine.toml"
    code, said = run("init", "leakscope:resnet20", "--image-size", 16, "--out", path)
    assert code == 0
    assert "leakscope audit" in said
    code, said = run("plan", path, "--no-measure")
    assert code == 0
    assert "cells." in said
    assert "sgd-train-mode" in path.read_text()  # the model has BatchNorm, so both modes are offered
    code, said = run("init", "leakscope:resnet20", "--out", path)
    assert code == 2
    assert "--force" in said


def test_plan_measures_and_writes_nothing(campaign, tmp_path):
    path = campaign()
    before = sorted(tmp_path.rglob("*"))
    code, said = run("plan", path)
    assert code == 0
    assert "4 cells. At most about" in said
    assert sorted(tmp_path.rglob("*")) == before


def test_audit_ends_with_a_report_and_again_runs_nothing(campaign, tmp_path):
    out = tmp_path / "out"
    code, said = run("audit", campaign(), "--out", out)
    assert code == 0, said
    assert "exact" in said
    report = out / "report.html"
    assert report.exists()
    record = next((out / "cells").glob("*/record.json"))
    before = record.stat().st_mtime_ns
    assert run("audit", campaign(), "--out", out)[0] == 0
    assert record.stat().st_mtime_ns == before


def test_fail_on_is_an_exit_code(campaign, tmp_path):
    out = tmp_path / "out"
    assert run("audit", campaign(), "--out", out, "--fail-on", "recognisable")[0] == 3
    code, said = run("audit", campaign(), "--out", out, "--fail-on", "recognizable")
    assert code == 2
    assert "recognisable" in said


def test_mistakes_are_listed_with_their_keys(campaign):
    path = campaign(text=CAMPAIGN.replace("image_size", "image_sise").replace('rung = "', 'rang = "'))
    code, said = run("audit", path)
    assert code == 2
    assert "models.lenet.image_sise" in said
    assert "Did you mean 'image_size'" in said


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(campaign, tmp_path):
    out = tmp_path / "out"
    text = CAMPAIGN.replace('[attacks.linear]\ntype = "exact-git"\n', '[attacks.first]\ntype = "tag"\nsteps = 3\n')
    command = [sys.executable, "-m", "leakscope.cli", "audit", str(campaign(20000, text)), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # Wait until a cell is under way and has a checkpoint: the command has listened to Ctrl-C since long before.
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if list(out.glob("cells/*/checkpoint/*.pt")) and list(out.glob("cells/*/record.json")):
            break
        time.sleep(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "the same command again goes on" in errors.decode()
    assert (out / "report.html").exists()
    done = json.loads((out / "progress.json").read_text())["done"]
    assert 1 <= done < 4
