"""What a defence costs, measured: train a small model for a fixed budget with it and without.

Each round one client trains on one batch, its update goes through the defences as it would before being sent, and the
server applies what arrives: v ← g + μ v, θ ← θ − η v, or θ ← θ + Δ for local training. Both sides of the comparison see
the same batches in the same order, and each gets the best of the same learning rates.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, final

import torch
from torch import Tensor

from leakscope.audit.labelled import Labelled
from leakscope.audit.training import accuracy
from leakscope.client import FedSGD
from leakscope.client.defences.dp_sgd import DPSGD
from leakscope.client.round import run_round
from leakscope.models import VisionModel, load_model
from leakscope.random import fork
from leakscope.testing.bundled import bundled_batch, bundled_names
from leakscope.types import Batch, ClientProtocol, Defence, Setting, Signal

__all__ = ["Budget", "Training", "Utility", "best_training", "crops", "encoded_bytes", "small_network", "utility"]

DELTA: Final = 1e-5
_CLASSES: Final = 10


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What both sides of a comparison get. ``momentum`` is the server's, over the updates it receives."""

    rounds: int = 60
    batch_size: int = 16
    rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    momentum: float = 0.9


BUDGET: Final = Budget()
PROTOCOL: Final = FedSGD()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training run through a defence: accuracy on held-out images, the client's CPU seconds, and bytes it sent."""

    accuracy: float
    seconds: float
    bytes_sent: int
    rate: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """A defence's price. ``change`` is in accuracy; ratios are defended over plain; ``epsilon`` holds at δ = 1e-5.

    ``epsilon`` is ``None`` for a defence that promises nothing of the kind.
    """

    accuracy: float
    plain_accuracy: float
    time_ratio: float
    bytes_ratio: float
    epsilon: float | None

    @property
    def change(self) -> float:
        return self.accuracy - self.plain_accuracy


def utility(
    model: VisionModel,
    defences: Sequence[Defence],
    *,
    budget: Budget = BUDGET,
    protocol: ClientProtocol = PROTOCOL,
    data: tuple[Batch, Batch] | None = None,
    plain: Training | None = None,
    generator: torch.Generator,
) -> Utility:
    """Train ``model`` with ``defences`` and without; ``data`` is (training, held out), by default :func:`crops`.

    ``plain`` is the run without defences, where it is known already.
    """
    data = crops(model.input.shape[1], model.input.shape[0]) if data is None else data
    plain = plain or best_training(model, (), data, budget=budget, protocol=protocol, generator=generator)
    defended = best_training(model, defences, data, budget=budget, protocol=protocol, generator=generator)
    private = [d for d in defences if isinstance(d, DPSGD)]
    share = min(1.0, budget.batch_size / len(data[0]))
    return Utility(
        accuracy=defended.accuracy,
        plain_accuracy=plain.accuracy,
        time_ratio=defended.seconds / plain.seconds,
        bytes_ratio=defended.bytes_sent / plain.bytes_sent,
        epsilon=min((d.epsilon(sample_rate=share, steps=budget.rounds, delta=DELTA) for d in private), default=None),
    )


def small_network(channels: int = 3) -> VisionModel:
    """The network that costs are measured on, where none is chosen: two layers, images of 16 px, ten classes."""
    return load_model("leakscope:mlp?hidden=64", num_classes=10, image_size=16, channels=channels, seed=0)


def best_training(
    model: VisionModel,
    defences: Sequence[Defence],
    data: tuple[Batch, Batch],
    *,
    budget: Budget,
    protocol: ClientProtocol,
    generator: torch.Generator,
) -> Training:
    """The run at the learning rate that serves this chain of defences best."""
    runs = [_train(model, defences, data, budget, protocol, rate, generator) for rate in budget.rates]
    return max(runs, key=lambda run: run.accuracy)


def _train(
    model: VisionModel,
    defences: Sequence[Defence],
    data: tuple[Batch, Batch],
    budget: Budget,
    protocol: ClientProtocol,
    rate: float,
    generator: torch.Generator,
) -> Training:
    """One run on a copy of ``model``."""
    train, test = data
    velocity: dict[str, Tensor] = {}
    student = copy.deepcopy(model)
    order = fork(generator, "batches")
    sent = 0
    seconds = 0.0
    for index in range(budget.rounds):
        own = torch.randperm(len(train), generator=order)[: budget.batch_size]
        setting = Setting(
            model=student,
            images=train.images[own].to(device=student.device, dtype=student.dtype),
            labels=train.labels[own].to(student.device),
            protocol=protocol,
            aware=protocol,
            unaware=protocol,
            others=train,
        )
        started = time.process_time()
        setting, signal = run_round(setting, defences, generator=fork(generator, f"round/{index}"))
        seconds += time.process_time() - started
        sent += encoded_bytes(defences, signal)
        student = setting.model
        if _sends_delta(setting.protocol):
            _apply(student, signal, 1.0)
        else:
            for name, value in signal.items():
                velocity[name] = value + budget.momentum * velocity[name] if name in velocity else value
            _apply(student, {**signal, **velocity}, -rate)
    return Training(
        accuracy=accuracy(student, Labelled(images=test.images, labels=test.labels)),
        seconds=seconds,
        bytes_sent=sent,
        rate=rate,
    )


def encoded_bytes(defences: Sequence[Defence], signal: Signal) -> int:
    """The size of what is sent: the shortest of the encodings that a chain of defences offers, or plain numbers."""
    plain = sum(value.numel() * value.element_size() for value in signal.values())
    return min([plain, *(defence.bytes_sent(signal) for defence in defences)])


@cache
def crops(size: int, channels: int = 3, *, per_class: int = 40, seed: int = 0) -> tuple[Batch, Batch]:
    """Random crops of ten bundled photographs, (training, held out): which photograph is it from?

    Crops are four fifths as wide as a photograph, at random places; held-out ones are drawn anew.
    """
    generator = torch.Generator().manual_seed(seed)
    source = bundled_batch(bundled_names()[:_CLASSES], size=round(1.25 * size), channels=channels).images
    return _cut(source, size, per_class, generator), _cut(source, size, per_class // 2, generator)


def _cut(source: Tensor, size: int, count: int, generator: torch.Generator) -> Batch:
    images: list[Tensor] = []
    labels: list[int] = []
    room = source.shape[-1] - size + 1
    for label, photograph in enumerate(source):
        for _ in range(count):
            top, left = (int(n) for n in torch.randint(room, (2,), generator=generator))
            images.append(photograph[:, top : top + size, left : left + size])
            labels.append(label)
    return Batch(images=torch.stack(images), labels=torch.tensor(labels))


def _apply(model: VisionModel, signal: Signal, factor: float) -> None:
    """Move the weights by ``factor`` × signal; buffers are taken over; what did not arrive stays."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in signal:
                parameter.add_(signal[name], alpha=factor)
        for name, buffer in model.named_buffers():
            if name in signal:
                buffer.copy_(signal[name])


def _sends_delta(protocol: object) -> bool:
    """Whether this client, or those behind an aggregate, send how weights moved instead of a gradient."""
    inner = getattr(protocol, "client", getattr(protocol, "inner", None))
    return hasattr(protocol, "optimiser") if inner is None else _sends_delta(inner)
