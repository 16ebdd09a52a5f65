"""Augmentation against torchvision's functions, and the truth that scores are made against."""

import pytest
import torch
from local_training import seeded, small_batch, small_model
from torchvision.transforms.v2 import functional as tv

import leakscope as ls
from leakscope.client.augmentation import _jittered, _padded_crop, _resized_crop


@pytest.fixture(scope="module")
def images():
    return ls.bundled_batch(["cat", "coffee"], size=16).images


def test_colour_jitter_is_torchvisions(images):
    for factors in ([0.7, 1.3, 0.5], [1.2, 0.8, 1.5]):
        expected = images[0]
        changes = tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation
        for change, factor in zip(changes, factors, strict=True):
            expected = change(expected, factor)
        torch.testing.assert_close(_jittered(images[0], factors), expected, rtol=1e-4, atol=1e-4)
    grey = images[0, :1]
    expected = tv.adjust_contrast(tv.adjust_brightness(grey, 0.7), 1.3)
    torch.testing.assert_close(_jittered(grey, [0.7, 1.3, 0.5]), expected, rtol=1e-4, atol=1e-4)


def test_crops_are_torchvisions(images):
    found = _resized_crop(images[0], 0.25, 0.5, 1.0, 0.0)  # a quarter of the area, square, bottom left
    expected = tv.resized_crop(images[0], 8, 0, 8, 8, [16, 16], antialias=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    corner = _padded_crop(images[0], 2, 0.0, 0.999)
    assert torch.equal(corner, tv.crop(tv.pad(images[0], [2, 2, 2, 2]), 0, 4, 16, 16))


def test_each_change_is_drawn_and_can_be_left_out(images):
    many = images.repeat(20, 1, 1, 1)
    flips = ls.Augmentation(flip=0.5)(many, seeded())
    flipped = [torch.equal(a, b.flip(-1)) for a, b in zip(flips, many, strict=True)]
    kept = [torch.equal(a, b) for a, b in zip(flips, many, strict=True)]
    assert all(a != b for a, b in zip(flipped, kept, strict=True))
    assert 8 < sum(flipped) < 32
    assert torch.equal(ls.Augmentation(flip=0)(many, seeded()), many)
    assert torch.equal(ls.Augmentation(flip=1)(many, seeded()), many.flip(-1))
    strong = ls.Augmentation(zoom=0.3, pad=3, jitter=0.5)
    found = strong(many, seeded(1))
    assert found.shape == many.shape
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert torch.equal(found, strong(many, seeded(1)))
    assert not torch.equal(found, strong(many, seeded(2)))


@pytest.mark.parametrize("client", [ls.FedSGD(), ls.FedAvg(steps=3)])
def test_the_truth_is_what_the_client_trained_on(client):
    model, batch = small_model(), small_batch()
    protocol = ls.Augmented(client=client, augmentation=ls.Augmentation(pad=2, flip=1, jitter=0.3))
    seen = ls.observe(model, batch, protocol=protocol, generator=seeded(4))
    truth = ls.trained_on(batch, protocol=protocol, generator=seeded(4))
    assert not torch.allclose(truth.images, batch.images)
    assert truth.names == batch.names
    expected = client.replay(model, truth.images, truth.labels)
    assert all(torch.equal(seen.signal[name], value) for name, value in expected.items())
    # The server replays candidates as they are.
    again = seen.protocol.replay(model, truth.images, truth.labels)
    assert all(torch.equal(again[name], value) for name, value in expected.items())
    assert "augmented image" in protocol.note
    assert ls.trained_on(batch, protocol=client, generator=seeded()) is batch


def test_bad_settings_are_refused():
    for options, words in (({"zoom": 0}, "zoom is 0"), ({"pad": -1}, "pad is -1"), ({"flip": 2}, "flip is 2")):
        with pytest.raises(ls.BadInput, match=words):
            ls.Augmentation(**options)
