"""Secure aggregation: several clients, of whom the server sees the sum and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, ClientProtocol, Signal

__all__ = ["SecureAggregation", "joined"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregation:
    """s = Σ_i w_i s_i over clients that each follow ``client`` on ``sizes[i]`` images (Bonawitz et al. 2017).

    It is replayed on the images of all clients, one client after the other: see :func:`joined`. The batch under attack
    is all of them, and its size their total. ``weighting``: ``"mean"`` (w = 1/n), ``"samples"`` (by images, as FedAvg
    has it) or ``"sum"`` (w = 1).
    """

    client: ClientProtocol
    sizes: tuple[int, ...]
    weighting: Literal["mean", "samples", "sum"] = "mean"

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise BadInput(f"sizes is {self.sizes}; it must hold the number of images, 1 or more, of each client.")
        if self.weighting not in ("mean", "samples", "sum"):
            raise BadInput(f"weighting is '{self.weighting}'; accepted: 'mean', 'samples' or 'sum'.")

    @property
    def hidden(self) -> tuple[str, ...]:
        """What a server must know or guess of each client."""
        return getattr(self.client, "hidden", ())

    @property
    def mode(self) -> str:
        """The clients' own."""
        return getattr(self.client, "mode", "eval")

    @property
    def stochastic(self) -> bool:
        """Whether the clients' random layers are active."""
        return getattr(self.client, "stochastic", False)

    @property
    def weights(self) -> tuple[float, ...]:
        """w_i."""
        if self.weighting == "sum":
            return (1.0,) * len(self.sizes)
        if self.weighting == "mean":
            return (1 / len(self.sizes),) * len(self.sizes)
        return tuple(size / sum(self.sizes) for size in self.sizes)

    def replay(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """The weighted sum of what the clients send, by name."""
        if len(images) != sum(self.sizes):
            raise BadInput(f"The clients have {' + '.join(map(str, self.sizes))} images; {len(images)} were given.")
        total: dict[str, Tensor] = {}
        parts = zip(images.split(self.sizes), labels.split(self.sizes), self.weights, strict=True)
        for index, (own, classes, weight) in enumerate(parts):
            draws = None if generator is None else fork(generator, f"client/{index}")
            sent = self.client.replay(model, own, classes, create_graph=create_graph, generator=draws)
            for name, value in sent.items():
                # A counter (BatchNorm's number of batches) is the same for all, and has no mean.
                share = weight * value if value.is_floating_point() else value
                total[name] = total[name] + share if name in total and value.is_floating_point() else share
        return total


def joined(batches: Sequence[Batch]) -> Batch:
    """The private batches of several clients, one after the other, as the batch that an aggregate is made from."""
    if not batches:
        raise BadInput("There are no batches to join: at least one client is needed.")
    names = [name for batch in batches for name in batch.names]
    total = sum(len(batch) for batch in batches)
    return Batch(
        images=torch.cat([batch.images for batch in batches]),
        labels=torch.cat([batch.labels for batch in batches]),
        names=tuple(names) if len(names) == total else (),
    )
