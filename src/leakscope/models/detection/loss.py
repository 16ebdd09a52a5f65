"""The training loss of a YOLOv8 head: box regression by CIoU and by distribution, classes by cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.functional.boxes import complete_iou, corners
from leakscope.functional.held import held
from leakscope.models.detection.assigner import assign

__all__ = ["DetectionLoss"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionLoss:
    """7.5 · CIoU + 1.5 · DFL + 0.5 · BCE, each divided by the sum of the target scores (at least 1).

    Predictions are (B, 4R + K, A): for A points, the R-bin distribution of the distance to each side of the box (left,
    top, right, bottom, in cells of the point's stride), then K class logits. The points are the cells of three grids,
    finest first, row by row.

    The assignment and its target scores are constants (:func:`~leakscope.functional.held.held`): everything else can be
    differentiated twice.
    """

    image_size: int
    num_classes: int
    strides: tuple[int, ...] = (8, 16, 32)
    bins: int = 16
    box: float = 7.5
    dfl: float = 1.5
    classes: float = 0.5

    def __call__(self, outputs: Tensor, boxes: Tensor) -> Tensor:
        """The loss, a scalar, of ``outputs`` (B, 4R + K, A) on ``boxes`` (B, M, 5)."""
        points, strides = self.points(outputs)
        distribution, logits = self._parts(outputs)
        predicted = self._boxes(distribution, points)
        boxes = boxes.to(outputs)
        truth = corners(boxes[..., 1:]) * self.image_size  # (B, M, 4)
        kinds = boxes[..., 0].long()
        found = held(assign, logits.sigmoid(), predicted * strides, points * strides, kinds, truth, kinds >= 0)
        total = found.scores.sum().clamp_min(1)
        loss = self.classes * F.binary_cross_entropy_with_logits(logits, found.scores, reduction="sum") / total
        if not bool(found.chosen.any()):
            return loss
        weight = found.scores.sum(-1)[found.chosen]  # (N,)
        aim = (found.boxes / strides)[found.chosen]  # (N, 4) in cells
        apart = 1 - complete_iou(predicted[found.chosen], aim)
        where = points.expand(len(outputs), -1, -1)[found.chosen]
        sides = torch.cat([where - aim[:, :2], aim[:, 2:] - where], dim=-1)  # (N, 4)
        focal = self._focal(distribution[found.chosen], sides)
        return loss + (self.box * (apart * weight).sum() + self.dfl * (focal * weight).sum()) / total

    def decode(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """What a detector says: corners (B, A, 4) in pixels, and class probabilities (B, A, K)."""
        points, strides = self.points(outputs)
        distribution, logits = self._parts(outputs)
        return self._boxes(distribution, points) * strides, logits.sigmoid()

    def points(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The centre of every cell, (A, 2) in cells, and its stride in pixels, (A, 1)."""
        centres: list[Tensor] = []
        for stride in self.strides:
            axis = torch.arange(self.image_size // stride, device=like.device, dtype=like.dtype) + 0.5
            centres.append(torch.cartesian_prod(axis, axis).flip(-1))
        sizes = [torch.full((len(c), 1), float(s)) for c, s in zip(centres, self.strides, strict=True)]
        return torch.cat(centres), torch.cat(sizes).to(like)

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """(B, A, 4, R) and (B, A, K)."""
        distribution, logits = outputs.transpose(1, 2).split((4 * self.bins, self.num_classes), dim=-1)
        return distribution.unflatten(-1, (4, self.bins)), logits

    def _boxes(self, distribution: Tensor, points: Tensor) -> Tensor:
        """Corners in cells: each side lies where its distribution expects it."""
        distances = distribution.softmax(-1) @ torch.arange(self.bins).to(distribution)
        return torch.cat([points - distances[..., :2], points + distances[..., 2:]], dim=-1)

    def _focal(self, distribution: Tensor, sides: Tensor) -> Tensor:
        """Distribution focal loss (Li et al. 2020), (N,): cross-entropy with the two bins around each distance."""
        aim = sides.clamp(0, self.bins - 1.01)
        left = aim.floor()
        surprise = -distribution.log_softmax(-1)  # (N, 4, R)
        below = surprise.gather(-1, left.long()[..., None]).squeeze(-1)
        above = surprise.gather(-1, left.long()[..., None] + 1).squeeze(-1)
        return (below * (left + 1 - aim) + above * (aim - left)).mean(-1)
