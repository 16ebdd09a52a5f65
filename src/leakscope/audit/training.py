"""Training a model on this machine: SGD or AdamW, cosine decay, shifts and flips; broken off and taken up again.

Leakage is to be measured on weights that have been trained, too. This is plain training, in the clear; what a defence
costs in a federation is measured by :mod:`leakscope.audit.utility`.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, final

import torch
from torch import Tensor

from leakscope.audit.labelled import Labelled
from leakscope.audit.training_files import restore_checkpoint, save_checkpoint
from leakscope.client.augmentation import Augmentation
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork, global_draws

__all__ = [
    "Epoch",
    "Precision",
    "TrainingPlan",
    "accuracy",
    "held_out_score",
    "mean_loss",
    "pixels",
    "train",
    "train_epoch",
    "training_key",
]

Precision = Literal["float32", "bfloat16"]
"""bfloat16 takes half of float32's time where the processor has instructions for it, and far longer elsewhere."""

_RATES: Final = {"sgd": 0.05, "adamw": 1e-3}
_DECAY: Final = {"sgd": 5e-4, "adamw": 0.05}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How to train. The learning rate rises over the first twentieth of the steps and falls to 0 as a cosine.

    ``pad`` and ``flip``: crops of an image framed by so many pixels, and how often left and right are swapped.
    ``precision``: what matrix products are computed in; weights, gradients and their sums stay in float32.
    """

    epochs: int
    batch_size: int = 64
    optimiser: Literal["sgd", "adamw"] = "sgd"
    lr: float | None = None
    pad: int = 4
    flip: float = 0.5
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise BadInput(f"Training takes at least 1 epoch of batches of 1; got {self.epochs} and {self.batch_size}.")
        if self.optimiser not in _RATES:
            raise BadInput(f"The optimiser is '{self.optimiser}'; accepted: {', '.join(_RATES)}.")
        if self.lr is not None and not (0 < self.lr < math.inf):
            raise BadInput(f"The learning rate is {self.lr}; it must be above 0.")

    @property
    def rate(self) -> float:
        """The largest learning rate: the one given, or the optimiser's usual one."""
        return _RATES[self.optimiser] if self.lr is None else self.lr

    def rate_at(self, progress: float) -> float:
        """The learning rate when this share of all steps is done."""
        return self.rate * min(1.0, (progress + 1e-3) / 0.05) * 0.5 * (1 + math.cos(math.pi * progress))

    def build(self, model: VisionModel) -> torch.optim.Optimizer:
        """The optimiser over what is not frozen."""
        trained = [p for p in model.parameters() if p.requires_grad]
        decay = _DECAY[self.optimiser]
        if self.optimiser == "adamw":
            return torch.optim.AdamW(trained, lr=self.rate, weight_decay=decay)
        return torch.optim.SGD(trained, lr=self.rate, momentum=0.9, nesterov=True, weight_decay=decay)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What an epoch came to: the mean training loss, and on held-out images the accuracy (a detector's: its loss)."""

    number: int
    loss: float
    held_out: float
    seconds: float


def train(
    model: VisionModel,
    data: Labelled,
    held_out: Labelled,
    plan: TrainingPlan,
    *,
    checkpoint: Path | None = None,
    told: Callable[[Epoch], None] = lambda epoch: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Epoch]:
    """Train ``model`` itself; the epochs that this call has run, fewer than planned if ``stop`` said so.

    After every epoch the state goes to ``checkpoint``, from which the same call goes on, with the same bits as an
    unbroken run. A checkpoint of other data, another plan or another start is refused.
    """
    root = torch.Generator().manual_seed(plan.seed)
    optimiser = plan.build(model)
    key = training_key(model, data, plan)
    done = 0
    if checkpoint is not None and checkpoint.exists():
        done = restore_checkpoint(checkpoint, key, model, optimiser)
    augmentation = Augmentation(pad=plan.pad, flip=plan.flip) if not model.input.boxes else None
    found: list[Epoch] = []
    for number in range(done, plan.epochs):
        began = time.monotonic()
        loss = train_epoch(
            model,
            data,
            optimiser,
            batch_size=plan.batch_size,
            generator=fork(root, f"epoch/{number}"),
            augmentation=augmentation,
            precision=plan.precision,
            rate=lambda share, number=number: plan.rate_at((number + share) / plan.epochs),
            stop=stop,
        )
        if loss is None:
            break
        if not math.isfinite(loss):
            raise BadInput(f"Training diverged in epoch {number + 1} (loss {loss}): try a smaller learning rate.")
        score = held_out_score(model, held_out)
        if checkpoint is not None:
            save_checkpoint(checkpoint, key, model, optimiser, number + 1)
        found.append(Epoch(number=number + 1, loss=loss, held_out=score, seconds=time.monotonic() - began))
        told(found[-1])
    return found


def train_epoch(
    model: VisionModel,
    data: Labelled,
    optimiser: torch.optim.Optimizer,
    *,
    batch_size: int,
    generator: torch.Generator,
    augmentation: Augmentation | None = None,
    precision: Precision = "float32",
    rate: Callable[[float], float] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Once over the data in train mode, random layers active; the mean loss, or ``None`` if ``stop`` said so.

    ``rate`` gives the learning rate at a share of the epoch.
    """
    batches = list(torch.randperm(len(data), generator=fork(generator, "order")).split(batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches.pop()  # BatchNorm may have no variance to divide by
    losses: list[float] = []
    try:
        with model.mode(True, stochastic=True), torch.enable_grad(), global_draws(fork(generator, "layers")):
            for index, rows in enumerate(batches):
                if stop():
                    return None
                if rate is not None:
                    for group in optimiser.param_groups:
                        group["lr"] = rate(index / len(batches))
                images = pixels(data.images[rows], model)
                if augmentation is not None:
                    images = augmentation(images, fork(generator, f"augmentation/{index}"))
                optimiser.zero_grad()
                with torch.autocast(model.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                    outputs = model(images)
                loss = model.loss(outputs.to(model.dtype), data.labels[rows].to(model.device))
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
    finally:
        optimiser.zero_grad()
    return sum(losses) / len(losses)


def held_out_score(model: VisionModel, data: Labelled) -> float:
    """The accuracy; a detector's loss."""
    return mean_loss(model, data) if model.input.boxes else accuracy(model, data)


def accuracy(model: VisionModel, data: Labelled, *, batch_size: int = 250) -> float:
    """The share of images whose largest logit is that of their class, in evaluation mode."""
    right = 0
    with torch.no_grad(), model.mode(False):
        for rows in torch.arange(len(data)).split(batch_size):
            right += int((model(pixels(data.images[rows], model)).argmax(1).cpu() == data.labels[rows].cpu()).sum())
    return right / len(data)


def mean_loss(model: VisionModel, data: Labelled, *, batch_size: int = 16) -> float:
    """The loss on held-out images, in evaluation mode: what there is to say of a detector in one number."""
    total = 0.0
    with torch.no_grad(), model.mode(False):
        for rows in torch.arange(len(data)).split(batch_size):
            outputs = model(pixels(data.images[rows], model))
            total += len(rows) * float(model.loss(outputs, data.labels[rows].to(model.device)))
    return total / len(data)


def pixels(images: Tensor, model: VisionModel) -> Tensor:
    """Images in bytes or in [0, 1] as the model takes them."""
    scaled = images.to(device=model.device, dtype=model.dtype)
    return scaled / 255 if images.dtype == torch.uint8 else scaled


def training_key(model: VisionModel, data: Labelled, plan: TrainingPlan) -> str:
    """A digest of where training starts, of the plan and of the data."""
    digest = hashlib.blake2b(json.dumps([model.fingerprint(), asdict(plan)]).encode(), digest_size=16)
    for tensor in (data.images, data.labels):
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
