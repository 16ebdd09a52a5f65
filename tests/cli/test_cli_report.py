"""``leakscope report`` and ``leakscope serve`` from the command line: files, exit codes, messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from campaign_folder import NAMES, build
from leakscope.cli import app
from leakscope.report.pdf import BROWSER
from leakscope.report.serve import Server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build(tmp_path)


def test_every_file_is_written(folder: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(folder), "--csv", "--json"])
    assert result.exit_code == 0, result.output
    assert "Images come back exactly." in result.stdout
    assert "--redact" in result.stderr
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (folder / "report.csv").read_text(encoding="utf-8").count(NAMES[0]) >= 6
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["kind"] == "leakscope report"
    assert not list(folder.glob(".*"))


def test_a_redacted_report_lies_beside_the_full_one(folder: Path) -> None:
    for arguments in ([], ["--redact", "--csv", "--json"]):
        assert CliRunner().invoke(app, ["report", str(folder), *arguments]).exit_code == 0
    assert NAMES[0] in (folder / "report.html").read_text(encoding="utf-8")
    for suffix in ("html", "csv", "json"):
        assert NAMES[0] not in (folder / f"report-redacted.{suffix}").read_text(encoding="utf-8")
    assert not (folder / "report.csv").exists()


def test_a_build_fails_on_what_was_found(folder: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(folder), "--fail-on", "recognisable"])
    assert result.exit_code == 3
    text = " ".join(result.stderr.split())
    assert "--fail-on recognisable: vit/photos/sgd, server: exact" in text
    assert "resnet/photos/sgd, server: unknown" in text
    assert "traces" not in text
    assert (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}/nowhere"], "holds no campaign"),
        (["{}", "--fail-on", "recognizable"], "Did you mean 'recognisable'?"),
        (["{}", "--pdf"], "no Chromium, Chrome or Edge was found"),
    ],
)
def test_misuse_is_explained(folder: Path, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROWSER, str(folder / "no-browser"))
    result = CliRunner().invoke(app, ["report", *(argument.format(folder) for argument in arguments)])
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_a_campaign_without_verdicts_is_refused(folder: Path) -> None:
    (folder / "findings.json").unlink()
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 2
    assert "no verdicts yet" in " ".join(result.stderr.split())
    assert not (folder / "report.html").exists()


def test_a_report_is_made_without_torch(folder: Path) -> None:
    code = (
        "import sys; from leakscope.cli import app\n"
        f"app(['report', {str(folder)!r}, '--json'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_serving_warns_where_others_can_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Server, poll_interval: float = 0.5) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", interrupted)
    local = CliRunner().invoke(app, ["serve", str(folder), "--port", "0"])
    assert local.exit_code == 0
    assert "http://127.0.0.1:" in local.stdout
    assert local.stderr == ""
    wide = CliRunner().invoke(app, ["serve", str(folder), "--port", "0", "--host", "0.0.0.0"])
    assert "There is no password." in " ".join(wide.stderr.split())
    missing = CliRunner().invoke(app, ["serve", str(folder / "nowhere")])
    assert missing.exit_code == 2
