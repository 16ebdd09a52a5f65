"""What makes a model a detector: it brings its own training loss, on boxes."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Detector"]


@runtime_checkable
class Detector(Protocol):
    """A module whose labels are boxes, (B, M, 5) as in :mod:`leakscope.functional.boxes`.

    Any ``nn.Module`` with this method is taken for one: its outputs may be any one tensor (B, …) that the loss reads.
    """

    def detection_loss(self, outputs: Tensor, boxes: Tensor) -> Tensor:
        """The training loss of the batch, a scalar, averaged over its images or boxes."""
        ...
