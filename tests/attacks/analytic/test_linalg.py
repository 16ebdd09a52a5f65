"""Ranks, row spaces and shrinkage against numpy and against simulated noise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.functional.linalg import numerical_rank, relative, row_space, shrinkage, spectrum


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(d=st.integers(1, 12), p=st.integers(1, 12), m=st.integers(1, 5), seed=st.integers(0, 99))
def test_the_plain_solve_is_numpys(d, p, m, seed):
    a, g = random(d, p, seed=seed), random(d, m, seed=seed + 1)
    found = spectrum(a, g)
    x = found.solve(torch.ones(1, 1))
    reference = np.linalg.lstsq(a.numpy(), g.numpy(), rcond=None)[0]
    np.testing.assert_allclose(x.numpy(), reference, atol=1e-8 * max(1, abs(reference).max()))
    left = np.square(g.numpy() - a.numpy() @ reference).sum(0)
    np.testing.assert_allclose(found.outside.numpy(), left, atol=1e-9)
    assert found.freedom == max(d - p, 0)


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
def test_numerical_rank(rank):
    matrix = random(8, rank) @ random(rank, 5, seed=1)
    values = torch.linalg.svdvals(matrix)
    assert numerical_rank(values, 8) == rank == np.linalg.matrix_rank(matrix.numpy())
    if rank > 1:
        assert numerical_rank(values, 8, floor=float(values[0]) * 0.999) == 1


def test_row_space():
    matrix = random(9, 3) @ random(3, 7, seed=1)
    basis, condition, gap = row_space(matrix, 3)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(matrix @ basis.mT @ basis, matrix)
    assert condition == pytest.approx(np.linalg.svd(matrix.numpy())[1][:3].max() / np.linalg.svd(matrix.numpy())[1][2])
    assert gap < 1e-12
    assert row_space(matrix, 2)[2] > 1e-3
    assert row_space(torch.zeros(3, 3), 1)[1] == float("inf")


def test_shrinkage_keeps_what_stands_above_the_noise():
    """Decaying spectrum, known noise: close to the best diagonal filter, far better than the plain solve."""
    u, _ = torch.linalg.qr(random(60, 30))
    v, _ = torch.linalg.qr(random(30, 30, seed=1))
    s = torch.logspace(0, -5, 30, dtype=torch.float64)
    a, x = u * s @ v.mT, random(30, 200, seed=2)
    g = a @ x + 1e-3 * random(60, 200, seed=3)
    found = spectrum(a, g)
    groups = torch.zeros(200, dtype=torch.long)
    noise = (found.outside.sum() / found.freedom / 200).reshape(1)
    assert float(noise.sqrt()) == pytest.approx(1e-3, rel=0.05)
    gain = shrinkage(found, groups, noise)
    ideal = (s**2 / (s**2 + 1e-6))[:, None]

    def loss(filtered):
        return float((found.solve(filtered) - x).square().mean())

    assert loss(gain) < 1.1 * loss(ideal)
    assert loss(gain) < 0.01 * loss(torch.ones(1, 1))


def test_shrinkage_without_noise_changes_nothing():
    found = spectrum(random(6, 4), random(6, 5, seed=1))
    gain = shrinkage(found, torch.tensor([0, 0, 1, 1, 1]), torch.zeros(3))
    assert bool((gain == 1).all())
    drowned = shrinkage(found, torch.zeros(5, dtype=torch.long), torch.tensor([1e9]))
    assert bool((drowned == 0).all())


def test_relative():
    assert relative(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 10.0])) == pytest.approx(0.5)
    assert relative(torch.zeros(2), torch.zeros(2)) == 0
    assert relative(torch.ones(2), torch.zeros(2)) == float("inf")
