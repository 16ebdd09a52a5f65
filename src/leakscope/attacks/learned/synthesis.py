"""Images for who has none: what the model's BatchNorm statistics and classes say of its training data; dead leaves."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from leakscope.attacks.decoders import pink
from leakscope.attacks.learned.leaves import dead_leaves
from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.recipes._statistics import OWN
from leakscope.attacks.recipes.deepinversion import deepinversion
from leakscope.client.fedsgd import FedSGD
from leakscope.client.threats import WITH_LABELS
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, Callback, Observation, Progress

__all__ = ["Synthesis"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """``count`` images by DeepInversion on the model's own statistics (Yin et al. 2020), and ``leaves`` drawn ones.

    Statistics weigh more than in that paper (``bn``), and pictures are searched by frequency from 1/f noise: pixel by
    pixel from white noise they stay as rough as it. Labels are drawn evenly. A model without trained BatchNorm
    statistics says nothing about images: with a ``count`` it is refused, dead leaves alone need none of it.
    """

    count: int
    leaves: int = 0
    batch: int = 64
    steps: int = 100
    lr: float = 0.1
    bn: float = 1.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("count", self.count, 0),
            ("leaves", self.leaves, 0),
            ("count and leaves together", self.count + self.leaves, 1),
            ("batch", self.batch, 1),
            ("steps", self.steps, 1),
        ):
            if value < least:
                raise BadInput(f"{name} of the synthesis is {value}; it must be at least {least}.")

    def __call__(
        self,
        model: VisionModel,
        *,
        generator: torch.Generator,
        callback: Callback | None = None,
        seconds: float | None = None,
    ) -> Batch:
        """The images, with the labels they were made for; after ``seconds`` no further batch of them is begun."""
        began = time.monotonic()
        images: list[Tensor] = []
        labels: list[Tensor] = []
        for number, several in enumerate(self._sizes(self.leaves)):
            if number and _late(began, seconds):
                break
            draw = fork(generator, f"leaves/{number}")
            images.append(dead_leaves(several, model.input.shape, generator=draw))
            labels.append(self._labels(model, several, draw))
        rounds = self._sizes(self.count)
        for number, several in enumerate(rounds):
            if number and _late(began, seconds):
                break
            wanted = self._labels(model, several, fork(generator, f"labels/{number}"))
            seen = Observation(
                signal={},
                model=model,
                protocol=FedSGD(),
                input=replace(model.input, batch_size=several),
                threat=WITH_LABELS,
                labels=wanted,
            )
            made = deepinversion(steps=self.steps, lr=self.lr, bn=self.bn, network=OWN)
            assert isinstance(made, Optimisation)
            made = replace(made, decode=pink, stop=replace(made.stop, seconds=seconds))
            told = _part(callback, number, len(rounds))
            found = made(seen, generator=fork(generator, f"images/{number}"), callback=told)
            images.append(found.images.cpu())
            labels.append(wanted)
        return Batch(images=torch.cat(images), labels=torch.cat(labels))

    def _sizes(self, total: int) -> list[int]:
        """How many images each batch has."""
        return [min(self.batch, total - done) for done in range(0, total, self.batch)]

    def _labels(self, model: VisionModel, count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(model.input.num_classes, (count,), generator=generator)


def _late(began: float, seconds: float | None) -> bool:
    return seconds is not None and time.monotonic() - began >= seconds


def _part(callback: Callback | None, number: int, rounds: int) -> Callback | None:
    """The same callback, told of this batch as a part of the whole."""
    if callback is None:
        return None

    def tell(progress: Progress) -> None:
        callback(replace(progress, step=number * progress.steps + progress.step, steps=rounds * progress.steps))

    return tell
