"""Ctrl-C keeps what is done, and neither it nor a kill changes a bit of what the run ends with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from leakscope.audit.record import read_record
from leakscope.cli import app

STEPS = 250
RUN = ["invert", "leakscope:lenet-dlg", "bundled:cat", "--steps", str(STEPS), "--threads", "1"]


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run without a break."""
    out = tmp_path_factory.mktemp("whole")
    assert CliRunner().invoke(app, [*RUN, "--out", str(out)]).exit_code == 0
    return out


def _broken_off(out: Path, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    """The same run in a process of its own, which gets a signal once it has kept a few steps."""
    process = subprocess.Popen(
        [sys.executable, "-m", "leakscope.cli", *RUN, "--checkpoint-every", "0", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Test runners in the background hand down a SIGINT that is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 150
    while not (out / "checkpoint" / "restart-0.pt").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=140)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _kept_steps(out: Path) -> int:
    return torch.load(out / "checkpoint" / "restart-0.pt", weights_only=True)["state"]["step"]


def _ends_like(out: Path, whole: Path) -> None:
    """Run the same command again, and compare with the run that was never broken."""
    assert 0 < _kept_steps(out) < STEPS
    result = CliRunner().invoke(app, [*RUN, "--out", str(out)])
    assert result.exit_code == 0, result.output
    ours, theirs = read_record(out), read_record(whole)
    assert (ours.run, ours.status, ours.trace) == (theirs.run, "finished", theirs.trace)
    for name in ("reconstruction.safetensors", "reconstruction-0.png"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path: Path, whole: Path) -> None:
    done = _broken_off(tmp_path, signal.SIGINT)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "goes on from the last checkpoint" in done.stderr
    assert "psnr" in done.stdout
    record = read_record(tmp_path)
    assert record.status == "interrupted"
    assert 0 < record.steps < STEPS
    assert len(record.pictures) == 1
    for name in ("reconstruction-0.png", "contact-sheet.png", "loss.png", "reconstruction.safetensors"):
        assert (tmp_path / name).exists()
    _ends_like(tmp_path, whole)


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, whole: Path) -> None:
    done = _broken_off(tmp_path, signal.SIGKILL)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "record.json").exists()
    _ends_like(tmp_path, whole)
