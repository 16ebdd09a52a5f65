"""The pairs of a fit: which images are trained on, which only measured on, and the errors between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.learned.inverter import InverseNetwork
from leakscope.attacks.learned.training import Stage
from leakscope.errors import BadInput
from leakscope.types import Batch

__all__ = ["MOST_HELD_OUT", "Fitting", "split_public"]

MOST_HELD_OUT: Final = 500
"""Batches that are measured on: more would only cost time."""
_HELD_OUT: Final = 0.05
_SLICE: Final = 512 * 3 * 32 * 32
"""Pixel values that are measured on at once: large images few at a time."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """Rows and images of the training pairs and of those held out, and the error between them.

    ``replay``: what clients send, (0: training, 1: held out; which pairs) ↦ signals, in place of rows that are kept.
    """

    network: InverseNetwork
    rows: list[dict[str, Tensor]]
    images: list[Tensor]
    replay: Callable[[int, Tensor], dict[str, Tensor]] | None = None

    @property
    def count(self) -> int:
        return len(self.images[0])

    def loss(self, stage: Stage, indices: Tensor) -> Tensor:
        return self.network.loss(stage, self._rows(0, stage, indices), self.images[0][indices])

    def held_out(self, stage: Stage) -> float:
        total, held = 0.0, self.images[1][: self.network.measured_on]
        many = max(1, _SLICE // held[0].numel())
        for start in range(0, len(held), many):
            truth = held[start : start + many]
            rows = self._rows(1, stage, torch.arange(start, start + len(truth)))
            total += float(self.network.error(stage, rows, truth)) * len(truth)
        return total / len(held)

    def _rows(self, which: int, stage: Stage, indices: Tensor) -> dict[str, Tensor]:
        if self.replay is None or not self.network.reads(stage):
            return {name: value[indices] for name, value in self.rows[which].items()}
        return self.network.read(self.replay(which, indices))


def split_public(public: Batch, batch_size: int, generator: torch.Generator) -> tuple[Batch, Batch]:
    """Images to train on, and images that are only measured on; the split is by image, so no image is in both."""
    held = max(batch_size, min(MOST_HELD_OUT * batch_size, round(_HELD_OUT * len(public))))
    if len(public) - held < batch_size:
        raise BadInput(f"{len(public)} public images are too few: at least two batches of {batch_size} are needed.")
    order = torch.randperm(len(public), generator=generator)

    def part(indices: Tensor) -> Batch:
        return Batch(images=public.images[indices], labels=public.labels[indices])

    return part(order[held:]), part(order[:held])
