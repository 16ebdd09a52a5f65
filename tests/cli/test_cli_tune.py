"""``leakscope tune``: the answer in a file that ``leakscope invert`` takes, labelled by what chose it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from leakscope.audit.record import read_record
from leakscope.cli import app

MLP = "leakscope:mlp?hidden=8"


def _run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def _tune(out: Path, *more: str, code: int = 0) -> str:
    small = ("--image-size", "12", "--steps", "5", "--storage", f"journal:{out}/study", "--out", out)
    return _run("tune", MLP, "bundled:cat", *small, *more, code=code)


def test_tuned_settings_can_be_used_and_an_oracles_are_labelled_to_the_end(tmp_path: Path) -> None:
    said = _tune(tmp_path, "--trials", "2", "--objective", "oracle")
    assert "ORACLE: chosen with the truth, an upper bound" in said
    assert "2 of 2 trials have ended" in said
    tuned = json.loads((tmp_path / "tuned.json").read_text(encoding="utf-8"))
    assert (tuned["objective"], tuned["upper_bound"]) == ("oracle", True)
    assert tuned["study"].endswith(".oracle")
    assert (tmp_path / "tuning.png").stat().st_size > 1000
    again = _tune(tmp_path, "--trials", "2", "--objective", "oracle")
    assert "trial 1: complete" not in again  # nothing was left to do

    used = tmp_path / "used"
    file = f"@{tmp_path}/tuned.json"
    said = _run("invert", MLP, "bundled:cat", "--image-size", "12", "--set", file, "--steps", "3", "--out", used)
    assert "tuned by an ORACLE" in said
    record = read_record(used)
    assert record.steps == 3
    assert record.settings["optimiser"]["lr"] == tuned["options"]["lr"]  # type: ignore[index]
    assert "was tuned for inverting-gradients, not for tag" in _run(
        "invert", MLP, "bundled:cat", "--attack", "tag", "--set", file, "--out", used, code=2
    )


def test_a_realistic_search_says_so_and_takes_ranges(tmp_path: Path) -> None:
    said = _tune(tmp_path, "--trials", "2", "--search", "lr=0.05:0.5:log", "--study", "mine")
    assert "matching loss (realistic: the attacker's own measure)" in said
    assert "ORACLE" not in said
    tuned = json.loads((tmp_path / "tuned.json").read_text(encoding="utf-8"))
    assert tuned["study"] == "mine.realistic"
    assert all(0.05 <= row["options"]["lr"] <= 0.5 and set(row["options"]) == {"lr"} for row in tuned["history"])
    assert "Did you mean 'lr'?" in _tune(tmp_path, "--search", "lrr=0:1", code=2)
    assert "nothing to search" in _run("tune", MLP, "bundled:cat", "-a", "linear-layer", "--out", tmp_path, code=2)
