"""Patches against a convolution, frequencies against scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dctn
from torch.nn import functional as F

from leakscope.functional.patches import bands, from_patches, joint_jump, range_excess, to_frequencies, to_patches


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), p=st.integers(1, 5), q=st.integers(1, 5), c=st.integers(1, 4))
def test_patches_are_what_a_patch_embedding_sees(rows, columns, p, q, c):
    g = torch.Generator().manual_seed(rows + 7 * columns)
    images = torch.rand((2, c, rows * p, columns * q), generator=g, dtype=torch.float64)
    weight = torch.randn((6, c, p, q), generator=g, dtype=torch.float64)
    patches = to_patches(images, (p, q))
    assert patches.shape == (2, rows * columns, c * p * q)
    tokens = F.conv2d(images, weight, stride=(p, q)).flatten(2).mT
    torch.testing.assert_close(patches @ weight.flatten(1).mT, tokens)
    assert torch.equal(from_patches(patches, (c, rows * p, columns * q), (p, q)), images)


@pytest.mark.parametrize(("channels", "patch"), [(3, (16, 16)), (1, (7, 4)), (3, (1, 2))])
def test_frequencies_are_scipys(channels, patch):
    g = torch.Generator().manual_seed(0)
    patches = torch.randn((5, channels * patch[0] * patch[1]), generator=g, dtype=torch.float64)
    found = to_frequencies(patches, channels, patch)
    cut = patches.reshape(5, channels, *patch).numpy()
    reference = dctn(cut, type=2, axes=(1, 2, 3), norm="ortho").reshape(5, -1)
    np.testing.assert_allclose(found.numpy(), reference, atol=1e-12)
    torch.testing.assert_close(to_frequencies(found, channels, patch, inverse=True), patches)


def test_bands():
    found = bands(3, (8, 8)).reshape(3, 8, 8)
    assert found[0, 0, 0] == 0
    assert found[0, 0, 1] == found[0, 1, 1] == 1
    assert found[0, 2, 0] == found[0, 3, 3] == 2
    assert found[0, 4, 0] == found[0, 7, 7] == 3
    assert torch.equal(found[1], found[0] + 4)
    assert torch.equal(found[2], found[1])
    assert bands(1, (1, 1)).tolist() == [0]


def test_joints():
    image = torch.zeros(1, 4, 6)
    image[:, :, 3:] = 1  # a step between the columns 2 and 3
    assert joint_jump(image, (4, 3)) == 1
    assert joint_jump(image, (4, 2)) == 0
    assert joint_jump(image, (4, 6)) == 0
    assert joint_jump(image, (2, 3)) == pytest.approx(4 / 10)


def test_range():
    assert range_excess(torch.tensor([0.0, 0.5, 1.0])) == 0
    assert range_excess(torch.tensor([-0.3, 1.4])) == pytest.approx(np.sqrt((0.09 + 0.16) / 2))
