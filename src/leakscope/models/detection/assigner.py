"""The task-aligned assigner of TOOD (Feng et al. 2021): which predictions answer for which box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.functional.boxes import complete_iou

__all__ = ["Assignment", "assign"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """For each of A predictions of each image: whether it answers for a box, for which one, and its target scores."""

    chosen: Tensor
    """(B, A) booleans"""
    boxes: Tensor
    """(B, A, 4) corners of the box it answers for; any box where it answers for none"""
    scores: Tensor
    """(B, A, K): the normalised alignment under the box's class, 0 elsewhere"""


def assign(
    scores: Tensor,
    predicted: Tensor,
    points: Tensor,
    classes: Tensor,
    boxes: Tensor,
    present: Tensor,
    *,
    topk: int = 10,
    alpha: float = 0.5,
    beta: float = 6.0,
    eps: float = 1e-9,
) -> Assignment:
    """Assign boxes to predictions by t = s^α u^β, s the score of the box's class and u the overlap (CIoU, at least 0).

    Each box takes the ``topk`` predictions of largest t among those whose point lies inside it. A prediction that
    several boxes take belongs to the one it overlaps most. Its target score is t scaled so that the largest of each box
    equals that box's largest overlap.

    Args:
        scores: (B, A, K) probabilities.
        predicted: (B, A, 4) corners.
        points: (A, 2) where each prediction stands.
        classes, boxes, present: (B, M) class indices, (B, M, 4) corners, (B, M) whether the row is a box at all.
    """
    low, high = boxes[:, :, None, :2], boxes[:, :, None, 2:]  # (B, M, 1, 2)
    margin = torch.cat([points - low, high - points], dim=-1).amin(-1)  # (B, M, A)
    inside = (margin > eps) & present[:, :, None]
    overlap = complete_iou(boxes[:, :, None], predicted[:, None]).clamp_min(0) * inside
    rows = classes.clamp_min(0)[:, :, None].expand(-1, -1, scores.shape[1])
    score = scores.transpose(1, 2).gather(1, rows)  # (B, M, A)
    aligned = score.pow(alpha) * overlap.pow(beta)
    # Stable, so that equal alignments (untrained networks have many zeros) fall the same way everywhere.
    order = aligned.masked_fill(~inside, -1).argsort(dim=-1, descending=True, stable=True)[..., :topk]
    taken = torch.zeros_like(inside).scatter(-1, order, True) & inside
    nearest = F.one_hot(overlap.argmax(1), boxes.shape[1]).transpose(1, 2).bool()  # (B, M, A)
    taken = torch.where(taken.sum(1, keepdim=True) > 1, nearest, taken)

    chosen = taken.any(1)
    which = taken.int().argmax(1)  # (B, A)
    aligned = aligned * taken
    scale = (overlap * taken).amax(-1, keepdim=True) / (aligned.amax(-1, keepdim=True) + eps)
    normalised = (aligned * scale).amax(1) * chosen  # (B, A)
    kinds = F.one_hot(classes.clamp_min(0).gather(1, which), scores.shape[-1])
    return Assignment(
        chosen=chosen,
        boxes=boxes.gather(1, which[..., None].expand(-1, -1, 4)),
        scores=kinds * normalised[..., None],
    )
