"""Matching: the right permutation, the right way round."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakscope.errors import BadInput
from leakscope.functional.matching import match, pairwise_mse


def _noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _total(reconstruction: torch.Tensor, truth: torch.Tensor, order: tuple[int, ...]) -> float:
    return sum(float((reconstruction[j] - truth[i]).double().square().mean()) for i, j in enumerate(order))


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 5), side=st.integers(1, 4), seed=st.integers(0, 10_000))
def test_total_error_is_the_least_over_all_permutations(batch: int, side: int, seed: int) -> None:
    truth, reconstruction = _noise(batch, 3, side, side, seed=seed), _noise(batch, 3, side, side, seed=seed + 1)
    assignment = match(reconstruction, truth)
    assert sorted(assignment.tolist()) == list(range(batch))
    best = min(_total(reconstruction, truth, order) for order in itertools.permutations(range(batch)))
    assert _total(reconstruction, truth, tuple(assignment.tolist())) == pytest.approx(best, abs=1e-12)


def test_indexing_with_the_assignment_lines_up_and_the_inverse_does_not() -> None:
    truth = _noise(3, 3, 8, 8)
    cycle = torch.tensor([1, 2, 0])  # a three-cycle is not its own inverse
    reconstruction = truth[cycle]
    assignment = match(reconstruction, truth)
    assert torch.equal(reconstruction[assignment], truth)
    inverse = torch.argsort(assignment)
    assert not torch.equal(inverse, assignment)
    assert not torch.equal(reconstruction[inverse], truth)
    assert assignment.dtype == torch.long
    assert assignment.tolist() == [2, 0, 1]


def test_rows_are_originals_and_columns_reconstructions() -> None:
    truth, reconstruction = _noise(2, 1, 3, 3, seed=1), _noise(2, 1, 3, 3, seed=2)
    cost = pairwise_mse(reconstruction, truth)
    assert cost[0, 1] == pytest.approx(float((truth[0] - reconstruction[1]).double().square().mean()), rel=1e-12)


def test_tiny_differences_survive() -> None:
    """Two originals 1e-9 apart in float64 are still told apart (an expanded square would lose them)."""
    first = _noise(1, 3, 16, 16).double()
    truth = torch.cat([first, first + 1e-9] * 20)
    truth += torch.arange(40).double().view(-1, 1, 1, 1) * 1e-9
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    assert torch.equal(truth[order][match(truth[order], truth)], truth)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_reconstruction_takes_the_place_that_is_left(bad: float) -> None:
    truth = _noise(4, 3, 6, 6)
    reconstruction = truth[[3, 1, 0, 2]].clone()
    reconstruction[1, 0, 0, 0] = bad
    assert match(reconstruction, truth).tolist() == [2, 1, 3, 0]
    assert sorted(match(torch.full_like(truth, bad), truth).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (3, 1, 4, 4), (3, 3, 4, 5)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="as many reconstructions as originals"):
        match(_noise(*shape), _noise(3, 3, 4, 4))


def test_others_images_are_passed_over() -> None:
    truth = _noise(3, 3, 4, 4)
    company = 1 - _noise(2, 3, 4, 4)
    everybody = torch.cat([company[:1], truth[[2, 0]], company[1:], truth[[1]]])
    assert match(everybody, truth).tolist() == [2, 4, 1]
