"""Writing records: matched pairs, files in one move, and nobody else's files touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import leakscope as ls
from leakscope.audit import store
from leakscope.audit.record import FAILED, RECORD, Record, read_record
from leakscope.audit.store import begin_record, ensure_writable, forget, write_failure, write_record
from leakscope.errors import BadInput


@pytest.fixture(scope="module")
def model() -> ls.VisionModel:
    return ls.load_model("leakscope:mlp?hidden=8", image_size=12)


@pytest.fixture
def batch() -> ls.Batch:
    return ls.bundled_batch(["astronaut", "cat", "coffee"], size=12)


def _begun(model: ls.VisionModel) -> Record:
    return begin_record(
        run="r",
        seed=3,
        stream="batch/0",
        model=model,
        client=ls.FedSGD(mode="train"),
        threat=ls.threats.WITH_LABELS,
        attack_name="inverting-gradients",
        attack=ls.attack("inverting-gradients", steps=7),
    )


def _shuffled(batch: ls.Batch) -> ls.Reconstruction:
    """The originals in another order, with one wrong label: what an attack on a batch brings back."""
    order = torch.tensor([2, 0, 1])
    labels = batch.labels[order].clone()
    labels[0] = 9
    return ls.Reconstruction(
        images=(batch.images[order] * 0.9),
        labels=labels,
        energy=0.25,
        outcome=ls.Outcome(status=ls.Status.PLATEAU, message="No progress."),
        trace=((1.0, 0.25), (float("nan"),)),
        steps=3,
        seconds=1.25,
        evidence={"restart": 0, "energies": [0.25, float("inf")], "labels": "counting"},
    )


def _write(folder: Path, model: ls.VisionModel, batch: ls.Batch) -> Record:
    back = _shuffled(batch)
    return write_record(
        folder, _begun(model), batch=batch, reconstruction=back, scores=ls.score(back, batch, ["psnr", "ssim"])
    )


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def test_pairs_are_matched_and_hold_the_pixels(tmp_path: Path, model: ls.VisionModel, batch: ls.Batch) -> None:
    record = _write(tmp_path, model, batch)
    assert [p.name for p in record.pictures] == ["astronaut", "cat", "coffee"]
    for index, picture in enumerate(record.pictures):
        truth = (batch.images[index] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(_pixels(tmp_path / picture.original), truth)
        rebuilt = (batch.images[index] * 0.9 * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(_pixels(tmp_path / picture.reconstruction), rebuilt)
    assert [(p.label, p.recovered_label) for p in record.pictures] == [(0, 0), (1, 1), (2, 9)]
    tensors = load_file(tmp_path / "reconstruction.safetensors")
    assert torch.equal(tensors["images"], batch.images * 0.9)
    assert tensors["labels"].tolist() == [0, 1, 9]


def test_the_record_says_what_was_attacked_and_how(tmp_path: Path, model: ls.VisionModel, batch: ls.Batch) -> None:
    written = _write(tmp_path, model, batch)
    record = read_record(tmp_path)
    assert record.target.fingerprint == model.fingerprint()
    assert record.target.parameters == sum(p.numel() for p in model.parameters())
    assert record.client == {
        "type": "FedSGD",
        "mode": "train",
        "reduction": "mean",
        "share_buffers": False,
        "micro_batch": None,
        "stochastic": False,
        "precision": "full",
        "trainable": [],
    }
    assert record.settings["steps"] == 7
    assert record.knows == ("batch size", "hyper-parameters", "labels")
    assert (record.seed, record.steps, record.seconds, record.energy) == (3, 3, 1.25, 0.25)
    assert (record.restart, record.energies) == (0, (0.25, float("inf")))
    assert record.evidence == {"labels": "counting"}
    assert record.status == "plateau"
    assert record.versions["torch"] == torch.__version__
    assert record.metric("psnr") == written.metric("psnr")
    assert record.scores["labels_correct"] == [True, True, False]


def test_no_half_written_file_is_left(
    tmp_path: Path, model: ls.VisionModel, batch: ls.Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "save_file", fails)
    with pytest.raises(BadInput, match="No space left"):
        _write(tmp_path, model, batch)
    assert not (tmp_path / RECORD).exists()  # the record comes last: what has one is complete
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob(".*"))


def test_a_second_record_replaces_the_first_and_its_files(
    tmp_path: Path, model: ls.VisionModel, batch: ls.Batch
) -> None:
    (tmp_path / "original-99.png").write_bytes(b"someone else's")
    _write(tmp_path, model, batch)
    _write(tmp_path, model, ls.bundled_batch(["brick", "cat", "coffee"][:3], size=12))
    write_failure(tmp_path, _begun(model), RuntimeError("out of memory"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["original-99.png", RECORD]
    failed = read_record(tmp_path)
    assert (failed.status, failed.pictures) == (FAILED, ())
    assert failed.error is not None
    assert failed.error.rstrip() == "RuntimeError: out of memory"  # raised nowhere, so without a traceback


def test_forget_never_follows_a_path_out_of_the_folder(tmp_path: Path, model: ls.VisionModel, batch: ls.Batch) -> None:
    outside = tmp_path / "keep.png"
    outside.write_bytes(b"mine")
    inside = tmp_path / "run"
    inside.mkdir()
    _write(inside, model, batch)
    data = json.loads((inside / RECORD).read_text())
    data["pictures"][0]["original"] = "../keep.png"
    data["pictures"][1]["original"] = str(outside)
    (inside / RECORD).write_text(json.dumps(data))
    forget(inside)
    assert outside.exists()
    assert not (inside / RECORD).exists()


def test_greyscale_is_written_as_greyscale_and_other_channels_are_refused(tmp_path: Path) -> None:
    for channels in (1, 4):
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * 64, 10))
        spec = ls.InputSpec(shape=(channels, 8, 8), num_classes=10)
        model = ls.VisionModel(net, input=spec, mean=(0.0,) * channels, std=(1.0,) * channels, name="net")
        batch = ls.Batch(images=torch.rand(1, channels, 8, 8), labels=torch.tensor([1]))
        back = ls.Reconstruction(
            images=torch.full_like(batch.images, float("nan")),
            labels=batch.labels,
            energy=1.0,
            outcome=ls.Outcome(status=ls.Status.DIVERGED, message="NaN."),
        )
        scores = ls.score(back, batch, ["mse"])
        folder = tmp_path / str(channels)
        folder.mkdir()
        if channels == 4:
            with pytest.raises(BadInput, match="1 or 3 channels"):
                write_record(folder, _begun(model), batch=batch, reconstruction=back, scores=scores)
        else:
            record = write_record(folder, _begun(model), batch=batch, reconstruction=back, scores=scores)
            assert _pixels(folder / "original-0.png").shape == (8, 8)
            assert _pixels(folder / "reconstruction-0.png").max() == 0  # NaN is shown as black
            assert record.pictures[0].name == "0"
            assert json.loads((folder / RECORD).read_text())["scores"]["metrics"]["mse"] == ["nan"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match=r"Cannot write to '.*file/out'"):
        ensure_writable(tmp_path / "file" / "out")
    ensure_writable(tmp_path / "new" / "deep")
    assert list((tmp_path / "new" / "deep").iterdir()) == []


def test_what_a_killed_process_left_half_written_is_swept(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f".record.json.{ended.pid}.part"
    ours, other = tmp_path / f".record.json.{os.getpid()}.part", tmp_path / ".unknown.part"
    for path in (left, ours, other):
        path.touch()
    ensure_writable(tmp_path)
    assert not left.exists()
    assert ours.exists()
    assert other.exists()
    assert not (tmp_path / ".writable").exists()
