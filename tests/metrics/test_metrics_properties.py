"""What every metric must keep, over shapes and hostile input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakscope.errors import BadInput, UnknownName
from leakscope.metrics import METRICS, Metric, metric
from leakscope.metrics.base import image_shape

PERFECT = {"mse": 0.0, "psnr": float("inf"), "ssim": 1.0, "ms-ssim": 1.0, "fft2d": 0.0, "lpips": 0.0, "iip": 1.0}
CHEAP = [name for name in METRICS if name != "lpips"]


def _images(shape: tuple[int, int, int, int], seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


shapes = st.tuples(st.integers(1, 4), st.sampled_from([1, 3]), st.integers(2, 36), st.integers(2, 36))


def test_the_metrics_of_the_brief_are_registered_and_described() -> None:
    assert set(PERFECT) <= set(METRICS)
    for entry in METRICS.values():
        assert isinstance(entry.value, Metric)
        assert entry.value.name == entry.name
        assert len(entry.summary) > 20
    assert [METRICS[name].value.higher_is_better for name in PERFECT] == [False, True, True, True, False, False, True]
    with pytest.raises(UnknownName, match="Did you mean 'psnr'"):
        METRICS["pnsr"]


@pytest.mark.parametrize("name", CHEAP)
@settings(max_examples=25, deadline=None)
@given(shape=shapes, seed=st.integers(0, 10_000), double=st.booleans())
def test_one_number_per_image_that_depends_on_that_image_only(
    name: str, shape: tuple[int, int, int, int], seed: int, double: bool
) -> None:
    fn = METRICS[name].value
    left, right = _images(shape, seed), _images(shape, seed + 1)
    if double:
        left, right = left.double(), right.double()
    values = fn(left, right)
    assert values.shape == shape[:1]
    assert values.dtype == torch.float64
    defined = fn.reason_undefined(image_shape(left)) is None
    assert bool(values.isnan().any()) is not defined

    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(fn(left[order], right[order]), values[order], rtol=0, atol=1e-12, equal_nan=True)

    broken = left.clone()
    broken[0, 0, 0, 0] = float("nan")
    after = fn(broken, right)
    assert after[0].isnan()
    torch.testing.assert_close(after[1:], values[1:], rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", CHEAP)
@settings(max_examples=15, deadline=None)
@given(shape=shapes, seed=st.integers(0, 10_000))
def test_equal_images_are_perfect(name: str, shape: tuple[int, int, int, int], seed: int) -> None:
    images, fn = _images(shape, seed), METRICS[name].value
    if fn.reason_undefined(image_shape(images)) is None:
        expected = torch.full(shape[:1], PERFECT[name], dtype=torch.float64)
        torch.testing.assert_close(fn(images, images), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CHEAP if name != "iip"])
def test_more_noise_scores_worse(name: str) -> None:
    fn = METRICS[name].value
    truth = _images((1, 3, 12, 12), 0).repeat_interleave(16, 2).repeat_interleave(16, 3)  # 192 px
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1))
    values = [fn((truth + amount * noise).clamp(0, 1), truth).item() for amount in (0.02, 0.1, 0.4)]
    assert values == sorted(values, reverse=fn.higher_is_better)
    assert len(set(values)) == 3


@pytest.mark.parametrize("name", list(METRICS))
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.rand(2, 3, 32, 32), torch.rand(3, 3, 32, 32)),
        (torch.rand(2, 3, 32, 32), torch.rand(2, 1, 32, 32)),
        (torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 31)),
        (torch.rand(3, 32, 32), torch.rand(3, 32, 32)),
        (torch.zeros(0, 3, 32, 32), torch.zeros(0, 3, 32, 32)),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, 3, 32, 32, dtype=torch.uint8)),
    ],
)
def test_images_that_do_not_fit_are_refused(name: str, left: Tensor, right: Tensor) -> None:
    with pytest.raises(BadInput):
        METRICS[name].value(left, right)


def test_small_images_are_told_what_is_needed() -> None:
    tiny = _images((2, 3, 10, 40), 0)
    assert METRICS["ssim"].value(tiny, tiny).isnan().all()
    assert "at least 11 × 11 px" in (METRICS["ssim"].value.reason_undefined((3, 10, 40)) or "")
    assert "31 px" in (METRICS["lpips"].value.reason_undefined((3, 30, 64)) or "")
    assert "2 channels" in (METRICS["lpips"].value.reason_undefined((2, 64, 64)) or "")


def test_a_name_can_be_taken_once() -> None:
    list(METRICS)
    with pytest.raises(ValueError, match="already a metric named 'psnr'"):

        @metric("psnr", higher_is_better=True)
        def again(reconstruction: Tensor, truth: Tensor) -> Tensor:
            """Another one."""
            return truth
