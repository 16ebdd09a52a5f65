"""The one training loop of learned attacks: stages, a validation set, the best point kept, resumed after a kill."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor, nn

from leakscope.attacks.learned.state import History, Store
from leakscope.attacks.optimisation import Checkpoint
from leakscope.attacks.parts import Schedule
from leakscope.errors import BadInput
from leakscope.random import fork
from leakscope.types import Callback, Progress

__all__ = ["Stage", "Trainee", "Training", "train"]

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a training: which parameters move (names that begin so; all by default), and for how many steps."""

    name: str
    steps: int
    parameters: tuple[str, ...] = ("",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Adam over batches of ``batch`` pairs, its rate following ``schedule``; every ``every`` steps the held-out pairs.

    The point with the lowest held-out error is kept. ``patience``: so many measurements in vain end a stage.
    ``clip``: the largest norm of a step's gradient.
    """

    lr: float
    schedule: Schedule
    batch: int = 256
    every: int = 50
    patience: int | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("batch", self.batch), ("every", self.every), ("patience", self.patience or 1)):
            if value < 1:
                raise BadInput(f"{name} is {value}; it must be at least 1.")
        if not 0 < self.lr < math.inf:
            raise BadInput(f"lr is {self.lr}; it must be more than 0.")


class Trainee(Protocol):
    """What the loop needs of a method: the network, how many pairs there are, a loss on some, an error on others."""

    @property
    def network(self) -> nn.Module: ...

    @property
    def count(self) -> int: ...

    def loss(self, stage: Stage, indices: Tensor) -> Tensor:
        """The training loss of these pairs, a scalar."""
        ...

    def held_out(self, stage: Stage) -> float:
        """The error on the pairs that are never trained on."""
        ...


def train(
    trainee: Trainee,
    stages: tuple[Stage, ...],
    training: Training,
    *,
    generator: torch.Generator,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
    key: str = "",
    seconds: float | None = None,
) -> History:
    """Run the stages; the network ends at the best point measured in the last of them.

    Of a budget of ``seconds`` each stage gets a share by its steps, and what those before it left over.

    With a ``checkpoint`` the whole state is on disk every so many seconds, and the same training (``key``) goes on from
    it after a kill, to the same weights. It is removed at the end.
    """
    network, total = trainee.network, sum(stage.steps for stage in stages)
    store = None if checkpoint is None else Store(checkpoint, key, generator)
    history = History()
    saved = None if store is None else store.load()
    if saved is not None:
        history = saved.history
    best: dict[str, Tensor] = {}
    began, spent, kept_at = time.monotonic(), history.seconds, time.monotonic()
    for number, stage in enumerate(stages):
        if number < history.stage:
            continue
        moving = _moving(network, stage)
        optimiser = torch.optim.Adam(list(moving.values()), lr=training.lr, fused=True)
        if saved is not None:
            saved.restore(network, moving, optimiser)
            best = saved.best
            saved = None
        else:
            history.step, history.best, history.in_vain, history.stage = 0, math.inf, 0, number
            history.seen = 0.0
            _measure(trainee, stage, history, best)
        left = math.inf if seconds is None else seconds - history.seconds
        until = history.seconds + left * (stage.steps - history.step) / (
            sum(one.steps for one in stages[number:]) - history.step
        )
        while history.step < stage.steps and not _given_up(history, training):
            if history.seconds >= until:
                history.out_of_time = True
                _measure(trainee, stage, history, best)
                break
            step = history.step
            for group in optimiser.param_groups:
                group["lr"] = training.lr * training.schedule(step / stage.steps)
            loss = trainee.loss(stage, _drawn(trainee.count, training.batch, step, fork(generator, stage.name)))
            optimiser.zero_grad()
            loss.backward()
            if training.clip is not None:
                nn.utils.clip_grad_norm_(list(moving.values()), training.clip)
            optimiser.step()
            history.step, history.seen = step + 1, float(loss.detach())
            history.seconds = spent + time.monotonic() - began
            if history.step % training.every == 0 or history.step == stage.steps:
                _measure(trainee, stage, history, best)
            if callback is not None:
                done = sum(one.steps for one in stages[:number]) + history.step
                callback(
                    Progress(step=done, steps=total, loss=history.seen, best=history.best, seconds=history.seconds)
                )
            if store is not None and checkpoint is not None and time.monotonic() - kept_at >= checkpoint.every:
                store.save(network, moving, optimiser, best, history)
                kept_at = time.monotonic()
        network.load_state_dict({**network.state_dict(), **best})
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    if store is not None:
        store.path.unlink(missing_ok=True)
    return history


def _moving(network: nn.Module, stage: Stage) -> dict[str, nn.Parameter]:
    """The parameters of a stage; the others are held still."""
    moving: dict[str, nn.Parameter] = {}
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(stage.parameters))
        if parameter.requires_grad:
            moving[name] = parameter
    return moving


def _measure(trainee: Trainee, stage: Stage, history: History, best: dict[str, Tensor]) -> None:
    with torch.no_grad():
        error = trainee.held_out(stage)
    history.rows.append((stage.name, history.step, history.seen, error))
    history.in_vain += 1
    if error < history.best:
        history.best, history.best_step, history.in_vain = error, history.step, 0
        best.clear()
        best.update({name: value.detach().clone() for name, value in trainee.network.state_dict().items()})
    log.debug("%s, step %d: loss %.4g, held out %.4g", stage.name, history.step, history.seen, error)


def _given_up(history: History, training: Training) -> bool:
    return training.patience is not None and history.in_vain >= training.patience


def _drawn(count: int, batch: int, step: int, generator: torch.Generator) -> Tensor:
    """The pairs of a step: every epoch a new order, which depends on its number alone."""
    batch = min(batch, count)
    each = count // batch
    order = torch.randperm(count, generator=fork(generator, f"epoch/{step // each}"))
    start = (step % each) * batch
    return order[start : start + batch]
