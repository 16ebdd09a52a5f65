"""Augmentation: the client changes its images at random before it trains on them.

What the server can recover is what the client trained on: the *augmented* images. An attack on an augmenting client is
scored against those (:func:`trained_on`), not against the files they were made from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, ClientProtocol, Signal

__all__ = ["Augmentation", "Augmented", "trained_on"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """What is done to each image, each with its own draws, in this order.

    ``zoom``: the smallest share of the area that a random resized crop keeps (torchvision's ``scale[0]``; 1: none).
    ``pad``: pixels of black border from which a crop of the old size is taken. ``flip``: how often left and right are
    swapped. ``jitter``: brightness, contrast and saturation change by factors in 1 ± jitter.
    """

    zoom: float = 1.0
    pad: int = 0
    flip: float = 0.5
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.zoom <= 1:
            raise BadInput(f"zoom is {self.zoom}; it is the share of the area that is kept at least, in (0, 1].")
        if self.pad < 0:
            raise BadInput(f"pad is {self.pad}; it must be 0 pixels or more.")
        for name in ("flip", "jitter"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"{name} is {getattr(self, name)}; it must lie in [0, 1].")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (B, C, H, W) in [0, 1], augmented, of the same shape."""
        rows = [self._one(image, fork(generator, f"image/{index}")) for index, image in enumerate(images)]
        return torch.stack(rows)

    def _one(self, image: Tensor, generator: torch.Generator) -> Tensor:
        # Every number is drawn whether it is used or not: switching one change on does not move the others.
        area, ratio, top, left, flip, *factors = torch.rand(8, generator=generator, dtype=torch.float64).tolist()
        if self.zoom < 1:
            image = _resized_crop(image, self.zoom + (1 - self.zoom) * area, ratio, top, left)
        if self.pad:
            image = _padded_crop(image, self.pad, top, left)
        if flip < self.flip:
            image = image.flip(-1)
        return _jittered(image, [1 + self.jitter * (2 * factor - 1) for factor in factors]) if self.jitter else image


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Augmented:
    """``client`` on augmented images. The draws are the client's own: a replay without a generator makes none.

    One draw for each image and round: with several local epochs, a client that draws anew in each shows the server
    several versions of every image, which this does not.
    """

    client: ClientProtocol
    augmentation: Augmentation

    @property
    def note(self) -> str:
        """What a reader of results must know."""
        return "The client augments its images: what is recovered, and compared with, is the augmented image."

    @property
    def hidden(self) -> tuple[str, ...]:
        """As of the client itself."""
        return getattr(self.client, "hidden", ())

    @property
    def mode(self) -> str:
        """The client's own."""
        return getattr(self.client, "mode", "eval")

    @property
    def stochastic(self) -> bool:
        """Whether the client's random layers are active."""
        return getattr(self.client, "stochastic", False)

    def replay(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """What the client sends of the augmented images; of these images as they are without a generator."""
        if model.input.boxes and generator is not None:
            raise BadInput(f"Augmentation would move the objects, not their boxes: {model.name} is a detector.")
        images = images if generator is None else self.augmented(images, generator)
        return self.client.replay(model, images, labels, create_graph=create_graph, generator=generator)

    def augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The images a replay with this generator trains on."""
        return self.augmentation(images, fork(generator, "augmentation"))


def trained_on(batch: Batch, *, protocol: ClientProtocol, generator: torch.Generator) -> Batch:
    """What the client really trained on when ``observe`` had this ``generator``: the truth to score against.

    The batch itself unless the client augments. For the auditor only: no attack may see it.
    """
    if not isinstance(protocol, Augmented):
        return batch
    return replace(batch, images=protocol.augmented(batch.images, fork(generator, "client")))


def _resized_crop(image: Tensor, area: float, ratio: float, top: float, left: float) -> Tensor:
    """A part of this share of the area and of an aspect ratio between 3:4 and 4:3, scaled to the whole size."""
    height, width = image.shape[-2:]
    aspect = math.exp((2 * ratio - 1) * math.log(4 / 3))
    rows = min(height, max(1, round(height * math.sqrt(area / aspect))))
    columns = min(width, max(1, round(width * math.sqrt(area * aspect))))
    row, column = round(top * (height - rows)), round(left * (width - columns))
    part = image[:, row : row + rows, column : column + columns]
    scaled = F.interpolate(part[None], size=(height, width), mode="bilinear", align_corners=False, antialias=True)
    return scaled[0].clamp(0, 1)


def _padded_crop(image: Tensor, pad: int, top: float, left: float) -> Tensor:
    height, width = image.shape[-2:]
    framed = F.pad(image, (pad, pad, pad, pad))
    row, column = min(int(top * (2 * pad + 1)), 2 * pad), min(int(left * (2 * pad + 1)), 2 * pad)
    return framed[:, row : row + height, column : column + width]


def _jittered(image: Tensor, factors: list[float]) -> Tensor:
    """Brightness, contrast and saturation, as torchvision defines them, each kept in [0, 1]."""
    brightness, contrast, saturation = factors
    image = (brightness * image).clamp(0, 1)
    image = _blended(image, _grey(image).mean(), contrast)
    return _blended(image, _grey(image), saturation) if image.shape[0] == 3 else image


def _blended(image: Tensor, base: Tensor, factor: float) -> Tensor:
    return (factor * image + (1 - factor) * base).clamp(0, 1)


def _grey(image: Tensor) -> Tensor:
    """(1, H, W): the luma of ITU-R 601, or the single channel itself."""
    if image.shape[0] != 3:
        return image
    return (torch.tensor([0.2989, 0.587, 0.114]).to(image)[:, None, None] * image).sum(0, keepdim=True)
