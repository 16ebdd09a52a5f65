"""Boxes: CIoU against torchvision's, letterbox maths, what is refused."""

from __future__ import annotations

import pytest
import torch

from leakscope._torchvision_ops import ensure
from leakscope.errors import BadInput
from leakscope.functional.boxes import Letterbox, check_boxes, complete_iou, corners, same_boxes, stack_boxes
from leakscope.functional.held import held
from leakscope.types import Batch

ensure()
from torchvision.ops import complete_box_iou_loss  # noqa: E402


def some_boxes(count: int, seed: int) -> torch.Tensor:
    draw = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return corners(torch.cat([draw[:, :2] * 40, draw[:, 2:] * 30 + 1], dim=1))


def test_complete_iou_is_torchvisions_with_its_gradient():
    one, other = some_boxes(200, 0).requires_grad_(), some_boxes(200, 1)
    other[:20] = one[:20].detach()
    ours, theirs = 1 - complete_iou(one, other), complete_box_iou_loss(one, other, reduction="none")
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    (mine,) = torch.autograd.grad(ours.sum(), one)
    (reference,) = torch.autograd.grad(theirs.sum(), one)
    torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-8)


def test_held_values_carry_no_gradient():
    x = torch.tensor([2.0], requires_grad=True)
    (slope,) = torch.autograd.grad((held(torch.square, x) * x).sum(), x)
    assert slope.item() == 4  # not 12


def test_a_wide_picture_gets_bars_above_and_below():
    frame = Letterbox(source=(640, 320), target=(256, 256))
    assert frame.inner == (256, 128)
    assert frame.offset == (0, 64)
    # The whole picture, and its lower right quarter.
    found = frame.boxes(torch.tensor([[3, 0.5, 0.5, 1, 1], [4, 0.75, 0.75, 0.5, 0.5]]))
    assert found.tolist() == [[3, 0.5, 0.5, 1.0, 0.5], [4, 0.75, 0.625, 0.5, 0.25]]


@pytest.mark.parametrize("source", [(100, 37), (37, 100), (500, 499), (1, 1000)])
def test_letterboxed_boxes_stay_around_the_same_pixels(source):
    frame = Letterbox(source=source, target=(64, 96))
    (_, x, y, width, height), *_ = frame.boxes(torch.tensor([[0, 0.5, 0.5, 1.0, 1.0]], dtype=torch.float64)).tolist()
    left, top = (x - width / 2) * 64, (y - height / 2) * 96
    assert (round(left, 9), round(top, 9)) == frame.offset
    assert (round(width * 64, 9), round(height * 96, 9)) == frame.inner
    assert frame.inner[0] == 64 or frame.inner[1] == 96


def test_images_with_fewer_boxes_are_filled_up():
    stacked = stack_boxes([torch.zeros(0, 5), torch.tensor([[1, 0.5, 0.5, 0.2, 0.2]])])
    assert stacked.shape == (2, 1, 5)
    assert stacked[0].eq(-1).all()
    check_boxes(stacked)
    assert same_boxes(stacked, stacked).all()
    moved = stacked.clone()
    moved[1, 0, 1] = 0.4
    assert same_boxes(stacked, moved).tolist() == [True, False]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([0, 0.5, 0.5, 0.0, 0.2], "is empty"),
        ([0, 0.5, 0.5, -0.2, 0.2], "is empty"),
        ([0.0, 120, 80, 40, 40], "Divide pixels"),
        ([0, 0.9, 0.5, 0.4, 0.2], "reaches out of its image"),
        ([1.5, 0.5, 0.5, 0.2, 0.2], "has no class"),
        ([-2, 0.5, 0.5, 0.2, 0.2], "has no class"),
        ([-1, 0.5, 0.5, 0.2, 0.2], "is padding"),
        ([0, float("nan"), 0.5, 0.2, 0.2], "NaN"),
    ],
)
def test_hostile_boxes_are_refused(row, said):
    with pytest.raises(BadInput, match=said):
        Batch(images=torch.zeros(1, 3, 8, 8), labels=torch.tensor([[row]]))


def test_boxes_of_another_shape_are_refused():
    with pytest.raises(BadInput, match=r"\(B, M, 5\)"):
        Batch(images=torch.zeros(1, 3, 8, 8), labels=torch.zeros(1, 2, 4))
    with pytest.raises(BadInput, match="one per image"):
        Batch(images=torch.zeros(2, 3, 8, 8), labels=torch.zeros(1, 2, 5))
