"""Label rules against gradients that autograd made from known labels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from leakscope.errors import NotApplicable
from leakscope.functional import labels as rules


def head_gradients(labels, classes=10, features=32, seed=0, scale=0.1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(len(labels), features, generator=generator)
    weight = (torch.randn(classes, features, generator=generator) * scale).requires_grad_()
    bias = (torch.randn(classes, generator=generator) * scale).requires_grad_()
    loss = cross_entropy(inputs @ weight.T + bias, torch.tensor(labels))
    return *torch.autograd.grad(loss, (weight, bias)), weight.detach(), bias.detach()


@given(label=st.integers(0, 9), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_idlg_finds_any_single_label(label, seed):
    weight, *_ = head_gradients([label], seed=seed)
    assert rules.idlg(weight).tolist() == [label]


def test_minimum_rule_finds_distinct_labels_and_misses_repeats():
    weight, *_ = head_gradients([7, 1, 4])
    assert rules.minimum_rule(weight, 3).tolist() == [1, 4, 7]
    weight, *_ = head_gradients([2, 2, 2])
    found = rules.minimum_rule(weight, 3)
    assert rules.label_accuracy(found, torch.tensor([2, 2, 2]), 10) == pytest.approx(1 / 3)


def test_minimum_rule_refuses_more_samples_than_classes():
    with pytest.raises(NotApplicable, match="must repeat"):
        rules.minimum_rule(torch.randn(4, 8), 5)


@given(labels=st.lists(st.integers(0, 9), min_size=1, max_size=24), seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_counting_finds_repeats(labels, seed):
    found = rules.counting(*head_gradients(labels, seed=seed), batch_size=len(labels))
    assert found.tolist() == sorted(labels)


def test_counting_always_returns_the_batch_size():
    noise = torch.randn(10, 8, generator=torch.Generator().manual_seed(0))
    assert len(rules.counting(noise, noise[:, 0], noise, noise[:, 1], 7)) == 7


def test_label_accuracy_counts_multisets():
    assert rules.label_accuracy(torch.tensor([0, 0, 1]), torch.tensor([1, 0, 2]), 3) == pytest.approx(2 / 3)
