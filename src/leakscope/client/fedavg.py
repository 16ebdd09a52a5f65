"""FedAvg: the client trains for a while and sends how its weights moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from leakscope.client.fedsgd import FedSGD
from leakscope.client.local_optimisers import LocalOptimiser, Sgd, State
from leakscope.client.precision import Precision, check_precision, rounded
from leakscope.errors import BadInput
from leakscope.functional.autograd import gradients
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Signal

__all__ = ["FedAvg", "LocalStep"]

KEPT: Final = 2**30
"""Bytes that the graph of all steps may take; one that would take more is computed again, step by step, backwards."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStep:
    """One optimiser step: the epoch it belongs to, and the indices of the images of each of its micro-batches."""

    epoch: int
    batches: tuple[Tensor, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """Δ = θ_K − θ_0 after K steps of the client's optimiser over its images (McMahan et al. 2017), by parameter name.

    ``steps`` or ``epochs``: how long it trains. ``batch_size``: images per step, all by default; the last batch of an
    epoch may be smaller. ``accumulate``: batches whose gradients are averaged (summed for a summed loss) into one step.
    ``order``: the images as they stand (``"fixed"``), drawn anew each epoch from ``order_seed``, which the server gave
    out (``"seeded"``), or drawn by the client alone (``"private"``): a replay without a generator then takes them as
    they stand.
    ``share``: the client sends Δ, or the new weights, from which the server takes Δ at once. It matters for
    ``precision``, to which what is sent is rounded.
    ``mode``, ``reduction``, ``share_buffers``, ``stochastic`` and ``trainable`` are as for :class:`FedSGD`; in train
    mode BatchNorm's buffers are carried from step to step.
    """

    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    order: Literal["fixed", "seeded", "private"] = "fixed"
    order_seed: int = 0
    optimiser: LocalOptimiser = field(default_factory=Sgd)
    accumulate: int = 1
    mode: Literal["train", "eval"] = "eval"
    reduction: Literal["mean", "sum"] = "mean"
    share: Literal["delta", "weights"] = "delta"
    share_buffers: bool = False
    stochastic: bool = False
    precision: Precision = "full"
    trainable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            given = "neither was" if self.steps is None else "both were"
            raise BadInput(f"A FedAvg client trains for steps or for epochs; {given} given. Give one of them.")
        for name in ("steps", "epochs", "batch_size", "accumulate"):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} is {value}; it must be at least 1.")
        for name, accepted in (("order", ("fixed", "seeded", "private")), ("share", ("delta", "weights"))):
            if getattr(self, name) not in accepted:
                known = ", ".join(f"'{a}'" for a in accepted)
                raise BadInput(f"{name} is '{getattr(self, name)}'; accepted: {known}.")
        check_precision(self.precision)
        self.objective  # noqa: B018 (it checks what it is given)

    @property
    def objective(self) -> FedSGD:
        """The loss of one batch."""
        return FedSGD(mode=self.mode, reduction=self.reduction, stochastic=self.stochastic, trainable=self.trainable)

    @property
    def hidden(self) -> tuple[str, ...]:
        """What a server must know or guess to replay this client."""
        return ("learning rate", "optimiser", "number of local steps", "local batch size")

    def plan(self, count: int, generator: torch.Generator | None = None) -> tuple[LocalStep, ...]:
        """Every step on ``count`` images: which of them it takes."""
        plan: list[LocalStep] = []
        epoch = 0
        while len(plan) < (self.steps or 1) if self.epochs is None else epoch < self.epochs:
            batches = self._order(count, epoch, generator).split(self.batch_size or count)
            for start in range(0, len(batches), self.accumulate):
                plan.append(LocalStep(epoch=epoch, batches=tuple(batches[start : start + self.accumulate])))
            epoch += 1
        return tuple(plan[: self.steps])

    def replay(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """Δ by parameter name, and the new running statistics by buffer name where they are shared."""
        plan = self.plan(len(images), generator)
        return self.train(model, images, labels, plan, create_graph=create_graph, generator=generator)

    def train(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        plan: Sequence[LocalStep],
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """The same for any ``plan`` of steps over these images."""
        objective = self.objective
        start = objective.leaves(model)
        weights: Mapping[str, Tensor] = start
        used: set[str] = set()
        state, buffers = self.optimiser.start(start), objective.fresh_buffers(model)

        def advance(
            index: int, weights: Mapping[str, Tensor], state: State, buffers: Mapping[str, Tensor]
        ) -> tuple[dict[str, Tensor], State, dict[str, Tensor]]:
            written = {name: buffer.clone() for name, buffer in buffers.items()}  # a second run must find the first's
            summed: dict[str, Tensor] = {}
            batches = plan[index].batches
            for part, chosen in enumerate(batches):
                draws = None if generator is None else fork(generator, f"step/{index}/{part}")
                loss = objective.loss(
                    model, images[chosen], labels[chosen], parameters=weights, buffers=written, generator=draws
                )
                loss = loss / len(batches) if self.reduction == "mean" else loss
                found = gradients(loss, list(weights.values()), create_graph=create_graph)
                for name, g in zip(weights, found, strict=True):
                    if g is not None:
                        summed[name] = summed[name] + g if name in summed else g
            used.update(summed)
            moved, state = self.optimiser.step(weights, summed, state, index)
            return moved, state, written

        first = _Saved()
        for index in range(len(plan)):
            if create_graph and index and first.bytes * len(plan) > KEPT:
                # Memory for one step's graph, not for all; the random draws are forked, so they come out the same.
                weights, state, buffers = checkpoint(
                    advance, index, weights, state, buffers, use_reentrant=False, preserve_rng_state=False
                )
            else:
                with first.counting() if create_graph and not index else nullcontext():
                    weights, state, buffers = advance(index, weights, state, buffers)
            if not create_graph:
                weights = {name: w.detach().requires_grad_() for name, w in weights.items()}
        # A parameter that no forward pass used never moved, and says nothing.
        signal = {name: self._sent(weights[name], start[name].detach()) for name in start if name in used}
        if not create_graph:
            signal = {name: value.detach() for name, value in signal.items()}
        kept = {name: rounded(value, self.precision) for name, value in buffers.items()} if self.share_buffers else {}
        return signal | kept

    def _sent(self, weights: Tensor, start: Tensor) -> Tensor:
        """The delta as the server has it."""
        if self.share == "weights":
            return rounded(weights, self.precision) - start
        return rounded(weights - start, self.precision)

    def _order(self, count: int, epoch: int, generator: torch.Generator | None) -> Tensor:
        if self.order == "seeded":
            generator = torch.Generator().manual_seed(self.order_seed)
        if self.order == "fixed" or generator is None:
            return torch.arange(count)
        return torch.randperm(count, generator=fork(generator, f"order/{epoch}"))


class _Saved:
    """How many bytes a graph keeps for its backward pass."""

    def __init__(self) -> None:
        self.bytes = 0
        self._seen: set[int] = set()

    def counting(self) -> torch.autograd.graph.saved_tensors_hooks:
        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self.bytes += storage.nbytes()
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
