"""score(): matched once, measured per image, and written down without loss."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from leakscope.errors import BadInput, UnknownName
from leakscope.metrics import METRICS, Scores, score
from leakscope.metrics.base import Metric
from leakscope.metrics.psnr import psnr
from leakscope.testing.bundled import bundled_batch
from leakscope.types import Batch, Outcome, Reconstruction, Status

NAMES = ["astronaut", "cat", "coffee", "brick"]
FAST = ["mse", "psnr", "ssim", "fft2d", "iip"]


def _rebuilt(images: Tensor, labels: Tensor) -> Reconstruction:
    outcome = Outcome(status=Status.FINISHED, message="done")
    return Reconstruction(images=images, labels=labels, energy=0.0, outcome=outcome)


@pytest.fixture
def batch() -> Batch:
    return bundled_batch(NAMES, size=32)


def _noisy(batch: Batch) -> Tensor:
    amount = torch.tensor([0.02, 0.05, 0.1, 0.2]).view(-1, 1, 1, 1)
    noise = torch.randn(batch.images.shape, generator=torch.Generator().manual_seed(0))
    return (batch.images + amount * noise).clamp(0, 1)


def test_scores_follow_the_originals_whatever_order_the_attack_chose(batch: Batch) -> None:
    noisy, order = _noisy(batch), torch.tensor([2, 0, 3, 1])
    straight = score(_rebuilt(noisy, batch.labels), batch, FAST)
    shuffled = score(_rebuilt(noisy[order], batch.labels[order]), batch, FAST)
    assert straight.assignment.tolist() == [0, 1, 2, 3]
    assert order[shuffled.assignment].tolist() == [0, 1, 2, 3]
    assert shuffled.assignment.tolist() == [1, 3, 0, 2]
    for name in FAST:
        assert straight[name].shape == (4,)
        torch.testing.assert_close(shuffled[name], straight[name], rtol=0, atol=1e-12)
    torch.testing.assert_close(straight["psnr"], psnr(noisy, batch.images))
    assert straight["psnr"].tolist() == sorted(straight["psnr"].tolist(), reverse=True)
    assert shuffled.labels_correct.tolist() == [True] * 4


def test_labels_are_matched_with_their_images(batch: Batch) -> None:
    order = torch.tensor([1, 2, 3, 0])
    labels = batch.labels[order].clone()
    labels[0] = 9  # the reconstruction of original 1
    scores = score(_rebuilt(_noisy(batch)[order], labels), batch, ["mse"])
    assert scores.labels_correct.tolist() == [True, False, True, True]
    probabilities = torch.nn.functional.one_hot(labels, 10).float()
    assert score(_rebuilt(_noisy(batch)[order], probabilities), batch, ["mse"]).labels_correct.tolist() == [
        True, False, True, True,
    ]  # fmt: skip


def test_defaults_are_what_is_defined_here(batch: Batch) -> None:
    scores = score(_rebuilt(_noisy(batch), batch.labels), batch)
    assert set(FAST) <= set(scores)
    assert "ms-ssim" not in scores
    assert "161 px" in scores.notes["ms-ssim"]
    assert scores.chance["iip"] == pytest.approx(1 / 12)
    assert list(scores)[:3] == ["mse", "psnr", "ssim"]
    assert isinstance(scores, Scores)
    assert len(scores) == len(list(scores)) == len(dict(scores))
    large = bundled_batch(["cat"], size=161)
    assert "ms-ssim" in score(_rebuilt(large.images, large.labels), large)


def test_a_metric_asked_for_by_name_is_nan_with_a_note_where_undefined(batch: Batch) -> None:
    scores = score(_rebuilt(_noisy(batch), batch.labels), batch, ["ms-ssim", "psnr"])
    assert list(scores) == ["ms-ssim", "psnr"]
    assert scores["ms-ssim"].isnan().all()
    assert "161 px" in scores.notes["ms-ssim"]


def test_tiny_images_get_the_metrics_that_fit() -> None:
    batch = Batch(
        images=torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)), labels=torch.tensor([0, 1])
    )
    scores = score(_rebuilt(batch.images.clone(), batch.labels), batch)
    assert {"mse", "psnr", "fft2d", "iip"} <= set(scores)
    assert {"ssim", "ms-ssim", "lpips"} <= set(scores.notes)
    assert scores.table().splitlines()[2].startswith("0 ")


def test_a_broken_image_spoils_its_own_scores_only(batch: Batch) -> None:
    noisy = _noisy(batch)
    good = score(_rebuilt(noisy, batch.labels), batch, FAST)
    broken = noisy.clone()
    broken[2, 1, 3, 3] = float("nan")
    scores = score(_rebuilt(broken, batch.labels), batch, FAST)
    assert scores.assignment.tolist() == [0, 1, 2, 3]
    for name in FAST:
        assert scores[name][2].isnan()
        torch.testing.assert_close(scores[name][[0, 1, 3]], good[name][[0, 1, 3]], rtol=0, atol=1e-12)
    assert "nan" in scores.table()
    json.dumps(scores.to_json(), allow_nan=False)
    everything = score(_rebuilt(torch.full_like(noisy, float("nan")), batch.labels), batch)
    assert everything["psnr"].isnan().all()
    assert "nan" in everything.table()


def test_json_keeps_infinities_and_every_digit(batch: Batch) -> None:
    images = _noisy(batch).double()
    images[1] = batch.images[1].double()
    images[2] = batch.images[2].double() + 1e-13
    scores = score(_rebuilt(images, batch.labels), batch, [*FAST, "ms-ssim"])
    stored = json.loads(json.dumps(scores.to_json(), allow_nan=False))
    assert stored["metrics"]["psnr"][1] == "inf"
    assert stored["metrics"]["ms-ssim"] == ["nan"] * 4
    assert stored["metrics"]["psnr"][2] == pytest.approx(260, abs=0.1)
    assert [float(value) for value in stored["metrics"]["psnr"]] == scores["psnr"].tolist()
    assert stored["images"] == NAMES
    assert stored["assignment"] == [0, 1, 2, 3]
    assert stored["labels_correct"] == [True] * 4
    assert stored["chance"] == {"iip": pytest.approx(1 / 12)}
    assert stored["higher_is_better"]["mse"] is False


def test_the_table_has_a_row_per_image_and_the_extremes(batch: Batch) -> None:
    scores = score(_rebuilt(_noisy(batch), batch.labels), batch, ["psnr", "mse", "iip"])
    lines = scores.table().splitlines()
    assert lines[0].split() == ["image", "label", "psnr", "↑", "mse", "↓", "iip", "↑"]
    assert [line.split()[0] for line in lines[2:6]] == NAMES
    rows = {line.split()[0]: line.split() for line in lines[7:]}
    assert set(rows) == {"best", "worst", "mean", "chance"}
    psnrs, mses = scores["psnr"].tolist(), scores["mse"].tolist()
    assert [float(v) for v in rows["best"][1:3]] == pytest.approx([max(psnrs), min(mses)], rel=1e-2)
    assert [float(v) for v in rows["worst"][1:3]] == pytest.approx([min(psnrs), max(mses)], rel=1e-2)
    assert rows["mean"][1] == "4/4"
    assert float(rows["mean"][2]) == pytest.approx(sum(psnrs) / 4, rel=1e-2)
    assert float(rows["chance"][1]) == pytest.approx(1 / 12, rel=1e-2)
    assert len({len(line) for line in (lines[1], lines[6])}) == 1


def test_misuse_is_explained(batch: Batch) -> None:
    noisy = _noisy(batch)
    with pytest.raises(BadInput, match="as many reconstructions as originals"):
        score(_rebuilt(noisy[:3], batch.labels[:3]), batch)
    with pytest.raises(BadInput, match="the same channels and size"):
        score(_rebuilt(noisy[..., :16], batch.labels), batch)
    with pytest.raises(BadInput, match="labels"):
        score(_rebuilt(noisy, batch.labels[:2]), batch)
    with pytest.raises(UnknownName, match="Did you mean 'ssim'"):
        score(_rebuilt(noisy, batch.labels), batch, ["sim"])
    with pytest.raises(BadInput, match="as a list"):
        score(_rebuilt(noisy, batch.labels), batch, "psnr")
    with pytest.raises(KeyError, match="was not computed"):
        score(_rebuilt(noisy, batch.labels), batch, ["mse"])["psnr"]


def test_scores_cannot_be_changed_and_compare_by_identity(batch: Batch) -> None:
    one = score(_rebuilt(_noisy(batch), batch.labels), batch, ["mse"])
    two = score(_rebuilt(_noisy(batch), batch.labels), batch, ["mse"])
    assert one == one
    assert one != two
    assert len({one, two}) == 2
    with pytest.raises(TypeError):
        one.notes["mse"] = "better"  # type: ignore[index]


def test_a_metric_that_averages_over_the_batch_is_refused(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    list(METRICS)
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    mean = Metric(name="average", fn=lambda x, y: (x - y).square().mean(), higher_is_better=False)
    METRICS.add("average", mean, summary="A mean that hides one leaked image.")
    with pytest.raises(BadInput, match="one number per image"):
        score(_rebuilt(_noisy(batch), batch.labels), batch)


def test_gradients_do_not_leak_into_scores(batch: Batch) -> None:
    images = _noisy(batch).requires_grad_()
    scores = score(_rebuilt(images, batch.labels), batch, FAST)
    assert not any(scores[name].requires_grad for name in scores)
    assert math.isfinite(float(scores["mse"].sum()))
