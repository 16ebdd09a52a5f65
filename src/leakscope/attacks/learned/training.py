"""The one training loop of learned attacks: stages, a validation set, the best point kept, resumed after a kill."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from leakscope.attacks.optimisation import Checkpoint
from leakscope.attacks.parts import Schedule
from leakscope.errors import BadInput
from leakscope.random import fork
from leakscope.types import Callback, Progress

__all__ = ["History", "Stage", "Trainee", "Training", "train"]

log = logging.getLogger(__name__)

_STATE: Final = "training.safetensors"


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


@final
@dataclass(slots=True, kw_only=True)
class History:
    """What a training did: (stage, step, training loss, held-out error) at every measurement, and its time."""

    rows: list[tuple[str, int, float, float]] = field(default_factory=list[tuple[str, int, float, float]])
    best: float = math.inf
    best_step: int = 0
    seconds: float = 0.0
    step: int = 0
    in_vain: int = 0
    stage: int = 0
    seen: float = 0.0


def train(
    trainee: Trainee,
    stages: tuple[Stage, ...],
    training: Training,
    *,
    generator: torch.Generator,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
    key: str = "",
) -> History:
    """Run the stages; the network ends at the best point measured in the last of them.

    With a ``checkpoint`` the whole state is on disk every so many seconds, and the same training (``key``) goes on from
    it after a kill, to the same weights. It is removed at the end.
    """
    network, total = trainee.network, sum(stage.steps for stage in stages)
    store = None if checkpoint is None else _Store(checkpoint, key, generator)
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
        optimiser = torch.optim.Adam(list(moving.values()), lr=training.lr)
        if saved is not None:
            saved.restore(network, moving, optimiser)
            best = saved.best
            saved = None
        else:
            history.step, history.best, history.in_vain, history.stage = 0, math.inf, 0, number
            history.seen = 0.0
            _measure(trainee, stage, history, best)
        while history.step < stage.steps and not _given_up(history, training):
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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    tensors: dict[str, Tensor]
    history: History

    @property
    def best(self) -> dict[str, Tensor]:
        return {n.removeprefix("best/"): v for n, v in self.tensors.items() if n.startswith("best/")}

    def restore(self, network: nn.Module, moving: dict[str, nn.Parameter], optimiser: torch.optim.Adam) -> None:
        own = {n.removeprefix("now/"): v for n, v in self.tensors.items() if n.startswith("now/")}
        network.load_state_dict(own)
        state: dict[int, dict[str, Tensor]] = {}
        for index, name in enumerate(moving):
            parts = {part: self.tensors.get(f"{part}/{name}") for part in ("step", "exp_avg", "exp_avg_sq")}
            if all(value is not None for value in parts.values()):
                state[index] = cast("dict[str, Tensor]", parts)
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


@final
class _Store:
    """One file, replaced in one move, without pickle, read only by the training that wrote it."""

    def __init__(self, checkpoint: Checkpoint, key: str, generator: torch.Generator) -> None:
        self.path: Path = checkpoint.folder / _STATE
        seed = generator.get_state().numpy().tobytes()
        self.key = hashlib.blake2b(key.encode() + seed, digest_size=16).hexdigest()

    def save(
        self,
        network: nn.Module,
        moving: dict[str, nn.Parameter],
        optimiser: torch.optim.Adam,
        best: dict[str, Tensor],
        history: History,
    ) -> None:
        tensors = {f"now/{n}": v.detach() for n, v in network.state_dict().items()}
        tensors |= {f"best/{n}": v for n, v in best.items()}
        for name, parameter in moving.items():
            for part, value in optimiser.state[parameter].items():
                tensors[f"{part}/{name}"] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part_file = self.path.with_suffix(f".{os.getpid()}.part")
        meta = {"key": self.key, "history": json.dumps(asdict(history))}
        save_file({n: v.contiguous() for n, v in tensors.items()}, part_file, metadata=meta)
        part_file.replace(self.path)

    def load(self) -> _Saved | None:
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                meta: dict[str, str] = file.metadata() or {}
                if meta.get("key") != self.key:
                    log.warning("%s belongs to another training: starting afresh.", self.path.name)
                    return None
                told: dict[str, Any] = json.loads(meta["history"])
                told["rows"] = [tuple(row) for row in told["rows"]]
                return _Saved(
                    tensors={name: file.get_tensor(name) for name in file.keys()},  # noqa: SIM118
                    history=History(**told),
                )
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"The checkpoint {self.path} cannot be read ({error}). Delete it to start afresh."
            ) from error
