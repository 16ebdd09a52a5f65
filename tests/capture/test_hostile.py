"""Hostile captures: each gets a clear error, none runs code, none fills the memory, none is reported as safe."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest
from clients import photographs, small_model
from hostile import GOOD, cases
from typer.testing import CliRunner

import leakscope as ls
from leakscope.capture import Update, check, load_update, save_update, update_from_files
from leakscope.cli import app
from leakscope.client.fedavg import FedAvg
from leakscope.client.local_optimisers import Sgd

CASES = dict(cases())
MODEL, BATCH = small_model(), photographs()
CLIENT = FedAvg(steps=1, optimiser=Sgd(lr=0.05), mode="train", share="weights")
GROWTH = 512 * 2**20


def read(folder: Path) -> Update:
    after = next(folder.glob("after.*"), None)
    return load_update(folder / "capture") if after is None else update_from_files(folder / "before.pt", after)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_there_are_enough():
    assert len(CASES) >= 200
    assert len(CASES) == len(list(cases()))


def test_the_one_they_are_made_from_is_good(tmp_path):
    save_update(GOOD, tmp_path / "capture")
    assert check(read(tmp_path), MODEL, batch=BATCH, client=CLIENT).verified


@pytest.mark.parametrize("name", CASES)
def test_hostile_captures(name, tmp_path):
    CASES[name](tmp_path)
    before = peak()
    try:
        report = check(read(tmp_path), MODEL, batch=BATCH, client=CLIENT, explain=False)
    except ls.BadInput as error:
        message = str(error)
    else:
        assert not report.ok, f"{name} passed"
        assert not report.verified
        message = " ".join(report.problems)
    assert re.search(r"\w{3,} \w+", message), f"no sentence: {message!r}"
    assert len(message) < 4000
    assert message.isprintable(), "a message must not carry control characters to a terminal"
    assert not (tmp_path / "SENTINEL").exists(), "it ran code"
    assert peak() - before < GROWTH, "it filled the memory"


@pytest.mark.parametrize("name", [n for i, n in enumerate(CASES) if i % 40 == 0])
def test_the_command_line_never_says_yes(name, tmp_path):
    """Exit code 1 or 2, no traceback."""
    CASES[name](tmp_path)
    (tmp_path / "net.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom clients import small_model as make\n"
    )
    after = next(tmp_path.glob("after.*"), None)
    where = [tmp_path / "capture"] if after is None else [after, "--before", tmp_path / "before.pt"]
    options = ["--model", f"{tmp_path / 'net.py'}:make", "--batch", "bundled:astronaut,cat,coffee,flower"]
    client = ["--local-steps", "1", "--local-lr", "0.05", "--mode", "train"]
    result = CliRunner().invoke(app, [str(a) for a in ["check", *where, *options, *client]])
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit)
    assert "Fit to be attacked" not in result.output
