"""Losses in TensorBoard's files and in an MLflow store, read back with their own readers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import leakscope as ls
from leakscope.audit.trackers import tracking
from leakscope.errors import BadInput, MissingExtra, UnknownName
from leakscope.types import Progress

STEPS = 6


def _attacked(where: str | None, folder: Path, **options: object) -> tuple[list[Progress], ls.Batch]:
    """A tracked attack; what its callback was told, and the truth."""
    model = ls.load_model("leakscope:mlp?hidden=8", image_size=12)
    batch = ls.bundled_batch(["cat"], size=12)
    generator = torch.Generator().manual_seed(0)
    seen = ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.HONEST_SERVER, generator=generator)
    told: list[Progress] = []
    with tracking(where, run="a run", folder=folder, **options) as tracker:  # pyright: ignore[reportArgumentType]
        log = tracker.scope("cat")

        def callback(progress: Progress) -> None:
            told.append(progress)
            log(progress)

        ls.attack("inverting-gradients", steps=STEPS, population=2)(seen, generator=generator, callback=callback)
    return told, batch


def _curves(told: list[Progress]) -> dict[str, list[tuple[int, float]]]:
    wanted: dict[str, list[tuple[int, float]]] = {}
    for progress in told:
        for key, value in (("loss", progress.loss), ("best", progress.best)):
            wanted.setdefault(f"cat/{key}/restart-{progress.restart}", []).append((progress.step, value))
    return wanted


def test_tensorboard_gets_every_loss(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    told, _ = _attacked("tensorboard", tmp_path)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    wanted = _curves(told)
    assert set(events.Tags()["scalars"]) == set(wanted)
    for tag, points in wanted.items():
        assert [(e.step, e.value) for e in events.Scalars(tag)] == [(s, pytest.approx(v)) for s, v in points]
    assert events.Tags()["images"] == []


def test_candidates_stay_in_the_output_folder(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "out"
    _attacked(f"tensorboard:{out}/deeper", out, pictures=True)
    events = reader.EventAccumulator(str(out / "deeper"), size_guidance={"images": 0})
    events.Reload()
    assert set(events.Tags()["images"]) == {"cat/candidate/restart-0", "cat/candidate/restart-1"}
    picture = events.Images("cat/candidate/restart-0")[-1]
    assert (picture.width, picture.height) == (12, 12)
    for outside in (tmp_path / "elsewhere", out / ".." / "beside"):
        with pytest.raises(BadInput, match="stay in the output folder"):
            _attacked(f"tensorboard:{outside}", out, pictures=True)
        assert not outside.exists()


def test_mlflow_gets_every_loss_and_no_artifact(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    told, _ = _attacked(f"mlflow:{uri}", tmp_path)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("leakscope")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("a run", "FINISHED")
    assert client.list_artifacts(run.info.run_id) == []
    for key, points in _curves(told).items():
        assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)] == points
    _attacked(f"mlflow:{uri}", tmp_path)  # a second run joins the experiment
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_a_long_run_is_thinned_out_evenly(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tracking("tensorboard", run="long", folder=tmp_path) as tracker:
        log = tracker.scope("long")
        for step in range(1, 5001):
            loss = float("nan") if step == 5000 else 1 / step
            log(Progress(step=step, steps=5000, loss=loss, best=1 / step, seconds=0.0))
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    steps = [event.step for event in events.Scalars("long/best")]
    assert steps == [1, *range(10, 5001, 10)]
    assert [event.step for event in events.Scalars("long/loss")] == steps[:-1]  # what is no number is no point


def test_no_tracker_is_no_work(tmp_path: Path) -> None:
    _attacked(None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(where: str) -> None:
        with tracking(where, run="x", folder=tmp_path):
            pass

    with pytest.raises(UnknownName, match=r"Unknown tracker 'tensorbord'. Did you mean 'tensorboard'?"):
        start("tensorbord:x")
    with pytest.raises(BadInput, match="mlflow:URI"):
        start("mlflow")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(MissingExtra, match=r"leakscope\[tensorboard\]"):
        start("tensorboard")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtra, match=r"leakscope\[mlflow\]"):
        start("mlflow:sqlite:///x")
