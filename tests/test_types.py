import itertools
import math

import pytest
import torch

import leakscope as ls
from leakscope.types import Knows


def batch(**changes):
    good = {"images": torch.rand(2, 3, 8, 8), "labels": torch.tensor([0, 1])}
    return ls.Batch(**(good | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": torch.rand(3, 8, 8)}, r"float tensor \(B, C, H, W\)"),
        ({"images": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, "float tensor"),
        ({"images": torch.rand(0, 3, 8, 8), "labels": torch.zeros(0, dtype=torch.long)}, "empty"),
        ({"images": torch.full((2, 3, 8, 8), math.nan)}, "NaN"),
        ({"images": torch.rand(2, 3, 8, 8) * 255}, "Divide bytes by 255"),
        ({"images": torch.rand(2, 3, 8, 8) - 1}, r"lie in \[0, 1\]"),
        ({"labels": torch.tensor([0])}, "2 class indices"),
        ({"labels": torch.tensor([0.0, 1.0])}, "class indices"),
        ({"labels": torch.tensor([0, -1])}, "negative"),
        ({"names": ("one",)}, "1 names were given for 2"),
    ],
)
def test_bad_batches_are_refused(changes, message):
    with pytest.raises(ls.BadInput, match=message):
        batch(**changes)


def test_threats_form_a_ladder():
    rungs = ls.threats.LADDER
    assert all(a.knows < b.knows for a, b in itertools.pairwise(rungs))
    assert Knows.LABELS in ls.threats.HONEST_SERVER.plus(Knows.LABELS).knows
    assert Knows.LABELS not in ls.threats.HONEST_SERVER.knows
