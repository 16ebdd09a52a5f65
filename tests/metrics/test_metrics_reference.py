"""Each metric against an outside implementation, on photographs."""

from __future__ import annotations

import numpy as np
import pytest
import pytorch_msssim
import torch
from skimage import metrics as reference
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.metrics import METRICS
from leakscope.metrics.fft2d import fft2d
from leakscope.metrics.iip import iip, iip_chance, pixel_embedding
from leakscope.metrics.ms_ssim import ms_ssim
from leakscope.metrics.mse import mse
from leakscope.metrics.psnr import psnr
from leakscope.metrics.ssim import ssim
from leakscope.testing.bundled import bundled_images, bundled_names

NAMES = ["astronaut", "cat", "retina", "brick"]


def _pair(size: int, channels: int = 3, noise: float = 0.1, names: list[str] | None = None) -> tuple[Tensor, Tensor]:
    truth = bundled_images(names or NAMES, size, channels=channels).double()
    generator = torch.Generator().manual_seed(size)
    # A different amount of noise per image, so that a batch average cannot pass for per-image scores.
    amount = noise * torch.arange(1, len(truth) + 1).view(-1, 1, 1, 1)
    return (truth + amount * torch.randn(truth.shape, generator=generator).double()).clamp(0, 1), truth


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [28, 32, 65])
def test_mse_psnr_and_ssim_agree_with_scikit_image(size: int, channels: int) -> None:
    left, right = _pair(size, channels)
    for index in range(len(right)):
        x, y = left[index].numpy(), right[index].numpy()
        assert float(mse(left, right)[index]) == pytest.approx(reference.mean_squared_error(y, x), rel=1e-12)
        expected = reference.peak_signal_noise_ratio(y, x, data_range=1.0)
        assert float(psnr(left, right)[index]) == pytest.approx(expected, rel=1e-12)
        expected = reference.structural_similarity(
            y, x, data_range=1.0, channel_axis=0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
        )
        assert float(ssim(left, right)[index]) == pytest.approx(expected, rel=1e-9)


def test_ssim_at_its_smallest_size_agrees_with_scikit_image() -> None:
    left, right = _pair(11)
    expected = reference.structural_similarity(
        right[0].numpy(), left[0].numpy(), data_range=1.0, channel_axis=0, gaussian_weights=True, sigma=1.5,
        use_sample_covariance=False,
    )  # fmt: skip
    assert float(ssim(left, right)[0]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [176, 224, 256])
def test_ms_ssim_agrees_with_pytorch_msssim(size: int) -> None:
    left, right = _pair(size, noise=0.2, names=["astronaut", "retina"])
    # The reference rounds its window to float32 unless it is given one.
    taps = torch.exp(-0.5 * ((torch.arange(11).double() - 5) / 1.5) ** 2)
    window = (taps / taps.sum()).expand(3, 1, 1, 11)
    expected = pytorch_msssim.ms_ssim(left, right, data_range=1.0, size_average=False, win=window)
    torch.testing.assert_close(ms_ssim(left, right), expected, rtol=1e-9, atol=0)


def test_ms_ssim_starts_at_161_px() -> None:
    left, right = _pair(161, names=["cat"])
    # The reference fills odd borders with black and ours repeats the last row, so they agree only roughly here.
    expected = pytorch_msssim.ms_ssim(left, right, data_range=1.0, size_average=False)
    torch.testing.assert_close(ms_ssim(left, right), expected, rtol=0.02, atol=0)
    left, right = left[..., :160, :], right[..., :160, :]
    assert ms_ssim(left, right).isnan().all()
    assert "not defined below 161 px" in (METRICS["ms-ssim"].value.reason_undefined((3, 160, 161)) or "")
    assert METRICS["ms-ssim"].value.reason_undefined((3, 161, 161)) is None


def test_ms_ssim_of_a_negative_is_zero_not_nan() -> None:
    _, right = _pair(176, names=["brick"])
    assert float(ms_ssim(1 - right, right)) == 0.0


def test_fft2d_agrees_with_numpy_and_ignores_shifts() -> None:
    left, right = _pair(32)
    for index in range(len(right)):
        a = np.abs(np.fft.fft2(left[index].numpy())).ravel()
        b = np.abs(np.fft.fft2(right[index].numpy())).ravel()
        expected = 1 - a @ b / np.sqrt((a @ a) * (b @ b))
        assert float(fft2d(left, right)[index]) == pytest.approx(expected, rel=1e-9)
    shifted = right.roll((5, 3), dims=(2, 3))
    assert float(fft2d(shifted, right).max()) < 1e-12
    assert float(mse(shifted, right).min()) > 1e-4


def test_fft2d_of_black_images() -> None:
    black = torch.zeros(1, 3, 8, 8)
    assert fft2d(black, black).item() == 0.0
    assert fft2d(black, torch.ones(1, 3, 8, 8)).item() == 1.0
    assert fft2d(torch.ones(1, 3, 8, 8), black).item() == 1.0


def test_psnr_reaches_the_floor_of_float64_and_is_infinite_only_for_equality() -> None:
    truth = _pair(16)[1][:1].repeat(3, 1, 1, 1)
    close = truth.clone()
    close[0] += 1e-13
    close[1, 0, 0, 0] += 2e-16 / truth[1, 0, 0, 0].clamp(min=0.5)
    values = psnr(close, truth)
    assert values[0].item() == pytest.approx(260, abs=0.1)
    assert 300 < values[1].item() < float("inf")
    assert values[2].item() == float("inf")


def _nearest(vectors: np.ndarray, gallery: np.ndarray) -> list[int]:
    return [int(((gallery - vector) ** 2).sum(1).argmin()) for vector in vectors]


def test_iip_agrees_with_a_plain_nearest_neighbour_search() -> None:
    names = list(bundled_names())
    truth = bundled_images(names, 32).double()
    generator = torch.Generator().manual_seed(0)
    hopeless = torch.rand(truth.shape, generator=generator).double()
    mixed = torch.where((torch.arange(len(names)) % 2 == 0).view(-1, 1, 1, 1), truth * 0.7 + 0.3 * hopeless, hopeless)
    # Every bundled photograph is an original here, so the gallery is the batch itself.
    found = _nearest(pixel_embedding(mixed).numpy(), pixel_embedding(truth).numpy())
    expected = [float(index == own) for own, index in enumerate(found)]
    assert 0 < sum(expected) < len(names)
    assert iip(mixed, truth).tolist() == expected


def test_iip_finds_the_bundled_distractor_instead_of_a_wrong_original() -> None:
    truth, cat = bundled_images(["astronaut"], 32), bundled_images(["cat"], 32)
    assert iip(cat, truth).item() == 0.0
    assert iip(cat, truth, gallery=cat[:0]).item() == 1.0  # nothing else to confuse it with
    assert iip(truth, truth).item() == 1.0


def test_iip_of_a_blank_image_is_no_identification() -> None:
    truth = bundled_images(NAMES, 32)
    for grey in (0.0, 0.3, 1.0):
        assert iip(torch.full_like(truth, grey), truth).tolist() == [0.0] * len(truth)


def test_iip_copies_of_one_original_do_not_compete() -> None:
    truth = bundled_images(["cat", "cat", "brick"], 32)
    assert iip(truth, truth).tolist() == [1.0, 1.0, 1.0]


def test_iip_takes_any_embedding_and_gallery() -> None:
    truth = bundled_images(["cat", "coffee"], 32)

    def brightness(images: Tensor) -> Tensor:
        return images.flatten(1).mean(1, keepdim=True)

    gallery = bundled_images(["brick", "temple"], 32)
    assert iip(truth.flip(3), truth, gallery=gallery, embed=brightness).tolist() == [1.0, 1.0]
    assert iip(truth * 0, truth, gallery=gallery * 0, embed=brightness).tolist() == [0.0, 0.0]


def test_iip_explains_misuse_and_takes_unusual_channels() -> None:
    truth = bundled_images(["cat", "coffee"], 32)
    with pytest.raises(BadInput, match="Resize it first"):
        iip(truth, truth, gallery=bundled_images(["brick"], 16))
    with pytest.raises(BadInput, match=r"\(N, D\) vectors"):
        iip(truth, truth, embed=lambda images: images)
    infrared = torch.cat([truth, truth[:, :1]], dim=1)  # four channels, not square
    assert iip(infrared[..., :20], infrared[..., :20]).tolist() == [1.0, 1.0]


def test_chance_counts_the_pictures_to_choose_from() -> None:
    total = len(bundled_names())
    inside = bundled_images(["cat", "coffee"], 32)
    assert iip_chance(inside) == 1 / total  # both are among the bundled ones and are not counted twice
    foreign = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert iip_chance(foreign) == 1 / (total + 3)
    assert iip_chance(foreign, foreign[:0]) == 1 / 3
    chance = METRICS["iip"].value.chance
    assert chance is not None
    assert chance(foreign) == 1 / (total + 3)


def test_guessing_reaches_the_chance_level() -> None:
    truth = bundled_images(None, 16).double()
    hits = []
    for seed in range(60):
        noise = torch.rand(truth.shape, generator=torch.Generator().manual_seed(seed)).double()
        hits += iip(noise, truth).tolist()
    assert sum(hits) / len(hits) == pytest.approx(iip_chance(truth), abs=0.05)
