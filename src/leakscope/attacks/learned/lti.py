"""Learning to Invert: Wu et al., UAI 2023. One multi-layer perceptron from the whole gradient to the images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from leakscope.attacks.learned.inverter import InverseNetwork
from leakscope.attacks.learned.learned import LearnedAttack
from leakscope.attacks.learned.reading import Group, gather
from leakscope.attacks.learned.scaling import Standardise, linear
from leakscope.attacks.learned.training import Training
from leakscope.attacks.parts import decay_at
from leakscope.attacks.registry import register_attack
from leakscope.errors import BadInput
from leakscope.models import VisionModel

__all__ = ["LTI", "LTINetwork", "lti"]


@final
class LTINetwork(InverseNetwork):
    """Linear – ReLU – Linear – ReLU – Linear over one row of everything that was sent; a sigmoid keeps pixels in range.

    The row is standardised by the training pairs (``standardise``), which the authors do not do: without, the weights
    of small gradients take most of the training to grow.
    """

    def __init__(
        self,
        reads: Group,
        images: tuple[int, ...],
        *,
        hidden: int,
        standardise: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._reads, self._images = reads, images
        self.scale = Standardise(reads.width) if standardise else nn.Identity()
        self.layers = nn.Sequential(
            linear(reads.width, hidden, generator),
            nn.ReLU(),
            linear(hidden, hidden, generator),
            nn.ReLU(),
            linear(hidden, torch.Size(images).numel(), generator),
            nn.Sigmoid(),
        )

    def read(self, signal: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {self._reads.name: self._reads(signal)}

    def start(self, rows: Mapping[str, Tensor], images: Tensor) -> None:
        if isinstance(self.scale, Standardise):
            self.scale.fit(rows[self._reads.name])

    def forward(self, rows: Mapping[str, Tensor]) -> Tensor:
        return self.layers(self.scale(rows[self._reads.name])).view(-1, *self._images)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LTI:
    """The network for a model: everything sent in one group, hashed into ``bins`` where it is longer."""

    hidden: int
    bins: int
    standardise: bool

    def __post_init__(self) -> None:
        for name, value in (("hidden", self.hidden), ("bins", self.bins)):
            if value < 1:
                raise BadInput(f"{name} is {value}; it must be at least 1.")

    def build(
        self, model: VisionModel, shapes: Mapping[str, tuple[int, ...]], batch_size: int, generator: torch.Generator
    ) -> LTINetwork:
        reads = gather("signal", list(shapes), shapes, bins=self.bins)
        images = (batch_size, *model.input.shape)
        return LTINetwork(reads, images, hidden=self.hidden, standardise=self.standardise, generator=generator)


@register_attack("lti", cites="wu2023")
def lti(
    *,
    steps: int = 7800,
    pairs: int = 0,
    hidden: int = 3000,
    bins: int = 32_768,
    lr: float = 1e-4,
    batch: int = 256,
    standardise: bool = True,
    patience: int | None = None,
    seed: int = 0,
    cache: Path | None = None,
) -> LearnedAttack:
    """A perceptron from the hashed gradient to the images, fitted on public images first.

    Sizes, rate and schedule are the authors' for their LeNet: 200 epochs of 10,000 pairs are 7,800 steps. They hash a
    ResNet-20 into half its length; the default here is what a CPU can train.
    """
    return LearnedAttack(
        name="lti",
        architecture=LTI(hidden=hidden, bins=bins, standardise=standardise),
        training=Training(lr=lr, schedule=decay_at(0.75), batch=batch, patience=patience),
        steps=steps,
        options={"hidden": hidden, "bins": bins, "standardise": standardise},
        pairs=pairs,
        seed=seed,
        cache=cache,
    )
