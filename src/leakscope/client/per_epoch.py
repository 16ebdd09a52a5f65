"""Local training as a server must see it that does not know the order of the images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from leakscope.client.fedavg import FedAvg, LocalStep
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.types import Signal

__all__ = ["PerEpoch"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PerEpoch:
    """``client`` with images of their own for every epoch, ``count`` in each: those of epoch e at e·count and after.

    Which image a step took in which epoch is not known, but within an epoch any order will do, since it only names
    them: so each epoch gets a copy of the batch, to be tied to the others by a prior (Dimitrov et al. 2022).
    """

    client: FedAvg
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadInput(f"count is {self.count}; every epoch needs at least 1 image.")

    @property
    def mode(self) -> str:
        """The client's own."""
        return self.client.mode

    @property
    def epochs(self) -> int:
        """The epochs that were begun."""
        return self._plan()[-1].epoch + 1

    @property
    def whole_epochs(self) -> int:
        """The epochs in which every image was used."""
        plan = self._plan()
        last = [index for step in plan if step.epoch == plan[-1].epoch for part in step.batches for index in part]
        return self.epochs if len(last) == self.count else self.epochs - 1

    def replay(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """What the client would send of (epochs · count) images."""
        if len(images) != self.epochs * self.count:
            raise BadInput(f"{self.epochs} epochs of {self.count} images were expected; got {len(images)} images.")
        plan = tuple(
            LocalStep(epoch=step.epoch, batches=tuple(part + step.epoch * self.count for part in step.batches))
            for step in self._plan()
        )
        return self.client.train(model, images, labels, plan, create_graph=create_graph, generator=generator)

    def _plan(self) -> tuple[LocalStep, ...]:
        return replace(self.client, order="fixed").plan(self.count)
