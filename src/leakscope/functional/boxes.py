"""Boxes around objects: the labels of a detector, and the maths on them.

As labels they are (B, M, 5): class, centre x, centre y, width, height, the last four as shares of the image. An image
with fewer than M boxes is filled up with rows of −1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.functional.held import held

__all__ = ["PADDING", "Letterbox", "check_boxes", "complete_iou", "corners", "same_boxes", "stack_boxes"]

PADDING: Final = -1.0
"""Fills the rows of an image that has fewer boxes than another."""

_SLACK: Final = 1e-3
"""How far a box may reach over the edge: label files are rounded."""


def check_boxes(boxes: Tensor) -> None:
    """Raise :class:`BadInput` unless these are boxes as labels, (B, M, 5)."""
    if boxes.ndim != 3 or boxes.shape[2] != 5 or not boxes.is_floating_point():
        raise BadInput(
            "Boxes must be a float tensor (B, M, 5) of class, centre x, centre y, width and height; got "
            f"{boxes.dtype} {tuple(boxes.shape)}."
        )
    if not bool(torch.isfinite(boxes).all()):
        raise BadInput("The boxes hold NaN or infinite numbers.")
    padded = boxes[..., 0] == PADDING
    if bool((boxes[padded] != PADDING).any()):
        raise BadInput("A row of boxes with class -1 is padding: its other four numbers must be -1, too.")
    for image, row in (~padded).nonzero().tolist():
        kind, x, y, width, height = boxes[image, row].tolist()
        given = f"Box {row} of image {image} (class {kind:g}, centre {x:g}, {y:g}, size {width:g} × {height:g})"
        if kind < 0 or kind != int(kind):
            raise BadInput(f"{given} has no class: it must be a whole number from 0, or -1 throughout for padding.")
        if width <= 0 or height <= 0:
            raise BadInput(f"{given} is empty: width and height must be above 0.")
        low = min(x - width / 2, y - height / 2)
        high = max(x + width / 2, y + height / 2)
        if low < -_SLACK or high > 1 + _SLACK:
            raise BadInput(
                f"{given} reaches out of its image: numbers are shares of the image, from 0 to 1. Divide pixels by "
                "the image's width and height."
            )


def stack_boxes(boxes: list[Tensor]) -> Tensor:
    """(B, M, 5) from one (n, 5) tensor for each image, filled up to the largest n."""
    rows = max(1, *(len(one) for one in boxes))
    stacked = torch.full((len(boxes), rows, 5), PADDING)
    for image, one in zip(stacked, boxes, strict=True):
        image[: len(one)] = one
    return stacked


def same_boxes(one: Tensor, other: Tensor) -> Tensor:
    """Image by image, (B,), whether two sets of boxes (B, M, 5) are the same."""
    if one.shape[1:] != other.shape[1:]:
        return torch.zeros(len(one), dtype=torch.bool)
    return (one.to(other) == other).flatten(1).all(1)


def corners(boxes: Tensor) -> Tensor:
    """(…, 4) centre x, centre y, width, height → left, top, right, bottom."""
    centre, size = boxes.split(2, dim=-1)
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def complete_iou(one: Tensor, other: Tensor, eps: float = 1e-7) -> Tensor:
    """CIoU of boxes (…, 4) given by their corners (Zheng et al. 2020), at most 1:

        IoU − ρ²/c² − α v,   v = 4/π² (atan w/h − atan w'/h')²,   α = v / (1 − IoU + v)

    with ρ the distance of the centres and c the diagonal of the smallest box around both. α is held constant, as the
    authors do.
    """
    size, other_size = _size(one), _size(other)
    shared = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp_min(0)
    intersection = shared.prod(-1)
    union = size.prod(-1) + other_size.prod(-1) - intersection
    iou = intersection / (union + eps)
    around = torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])
    apart = (one[..., :2] + one[..., 2:] - other[..., :2] - other[..., 2:]) / 2
    distance = apart.square().sum(-1) / (around.square().sum(-1) + eps)
    v = 4 / math.pi**2 * (_angle(size, eps) - _angle(other_size, eps)).square()

    def trade_off(v: Tensor, iou: Tensor) -> Tensor:
        return v / (1 - iou + v + eps)

    return iou - distance - held(trade_off, v, iou) * v


def _size(boxes: Tensor) -> Tensor:
    return boxes[..., 2:] - boxes[..., :2]


def _angle(size: Tensor, eps: float) -> Tensor:
    return torch.atan(size[..., 0] / (size[..., 1] + eps))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Letterbox:
    """A picture of ``source`` (width, height) shrunk or grown into ``target``, its aspect kept, centred on grey."""

    source: tuple[int, int]
    target: tuple[int, int]

    @property
    def inner(self) -> tuple[int, int]:
        """The size of the picture inside the target."""
        scale = min(t / s for s, t in zip(self.source, self.target, strict=True))
        width, height = (max(1, min(t, round(s * scale))) for s, t in zip(self.source, self.target, strict=True))
        return width, height

    @property
    def offset(self) -> tuple[int, int]:
        """The bars to the left and on top."""
        left, top = ((t - i) // 2 for t, i in zip(self.target, self.inner, strict=True))
        return left, top

    def boxes(self, boxes: Tensor) -> Tensor:
        """(n, 5) boxes as shares of the source, as shares of the target."""
        inner, offset, target = (torch.tensor(v).to(boxes) for v in (self.inner, self.offset, self.target))
        centre = (boxes[:, 1:3] * inner + offset) / target
        return torch.cat([boxes[:, :1], centre, boxes[:, 3:] * inner / target], dim=1)
