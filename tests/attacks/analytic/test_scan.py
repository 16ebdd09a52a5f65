"""The scan: every closed form, what applied, what refused and why; from Python and on the command line."""

import json

import pytest
import torch
import typer
from small_vits import batch, psnr, seen, small_vit
from typer.testing import CliRunner

import leakscope as ls
from leakscope.attacks.analytic.scan import analytic_scan, closed_forms
from leakscope.cli.scan import scan

MINE = {"april-closed-form", "linear-layer", "patch-embedding", "patch-embedding-blind"}


def test_closed_forms_are_found_by_the_room_they_live_in():
    names = set(closed_forms())
    assert names >= MINE
    assert "inverting-gradients" not in names
    assert all(name in ls.ATTACKS for name in names)


def test_a_transformer():
    model = small_vit(width=96)
    private = batch(model)
    result = analytic_scan(seen(model, private))
    assert [one.name for one in result.tried] == sorted(closed_forms())
    assert {one.name for one in result.applied} == {"patch-embedding", "patch-embedding-blind"}
    assert all(one.refused for one in result.refused)
    assert psnr(result.best.reconstruction, private) > 100
    assert result["linear-layer"].energy == float("inf")
    assert "refused" in str(result)
    assert "applied" in str(result["patch-embedding"])


def test_the_same_seed_gives_the_same_bits():
    model = ls.load_model("leakscope:mlp?hidden=32", num_classes=10, image_size=8)
    observation = seen(model, ls.bundled_batch(["cat"], size=8))
    first, second = (analytic_scan(observation, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert [one.name for one in first.applied] == [one.name for one in second.applied]
    assert "linear-layer" in [one.name for one in first.applied]
    for one, other in zip(first.applied, second.applied, strict=True):
        assert torch.equal(one.reconstruction.images, other.reconstruction.images)


def test_nothing_applies():
    model = small_vit()
    result = analytic_scan(seen(model, batch(model, 3)))
    assert result.best is None
    assert "3 images" in result["patch-embedding"].refused


def test_other_errors_are_not_swallowed(monkeypatch):
    from leakscope.attacks.analytic import patch_embedding

    def broken(*_args, **_options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(patch_embedding, "solve", broken)
    model = small_vit()
    with pytest.raises(RuntimeError, match="a bug"):
        analytic_scan(seen(model, batch(model)))


@pytest.fixture
def command():
    app = typer.Typer()
    app.command()(scan)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def test_command_line(command, tmp_path):
    result = command(
        "leakscope:april-a", "bundled:cat,coffee", "--each", "--out", tmp_path, "--num-classes", 10, "--threads", 1
    )
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "patch-embedding applied" in text
    assert "linear-layer refused" in text
    record = json.loads((tmp_path / "batch-1" / "patch-embedding" / "record.json").read_text())
    assert record["scores"]["metrics"]["psnr"][0] > 60
    assert (tmp_path / "batch-0" / "april-closed-form" / "contact-sheet.png").is_file()
    assert not (tmp_path / "batch-0" / "linear-layer" / "record.json").exists()


def test_command_line_refuses_a_batch_and_forgets_old_pictures(command, tmp_path):
    options = ("--out", tmp_path, "--num-classes", 10)
    assert command("leakscope:april-a", "bundled:cat", *options).exit_code == 0
    assert (tmp_path / "patch-embedding" / "record.json").is_file()
    result = command("leakscope:april-a", "bundled:cat,coffee", *options)
    assert result.exit_code == 0, result.output
    assert "No closed form applies" in result.output
    assert not (tmp_path / "patch-embedding" / "record.json").exists()
