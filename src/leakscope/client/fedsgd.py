"""FedSGD: the client sends the gradient of its loss on one batch."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from leakscope.client.precision import Precision, check_precision, rounded
from leakscope.client.trainable import trainable_names
from leakscope.errors import BadInput
from leakscope.functional.autograd import gradients
from leakscope.models import VisionModel
from leakscope.random import global_draws
from leakscope.types import Signal

__all__ = ["FedSGD"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FedSGD:
    """g = ∇θ L(x, y), with L the model's loss on the batch: cross-entropy, or a detector's own on boxes.

    ``mode``: ``"train"`` runs BatchNorm on batch statistics, as training clients do; ``"eval"`` on running ones.
    ``share_buffers``: whether the updated running statistics are sent along (in train mode; they do not move in eval).
    ``stochastic``: whether dropout and its kin are active in train mode. Their masks are the client's own: a replay
    without a generator runs with them off.
    ``precision``: what is sent is rounded to it. ``trainable``: patterns of the names of the parameters that are
    trained and sent (``head.*``); all that are not frozen by default.
    ``micro_batch``: images that go through the network at a time, for batches that do not fit into memory; the gradient
    is that of the whole batch all the same.
    """

    mode: Literal["train", "eval"] = "eval"
    reduction: Literal["mean", "sum"] = "mean"
    share_buffers: bool = False
    stochastic: bool = False
    precision: Precision = "full"
    trainable: tuple[str, ...] = ()
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("train", "eval"):
            raise BadInput(f"mode is '{self.mode}'; accepted: 'train' or 'eval'.")
        if self.reduction not in ("mean", "sum"):
            raise BadInput(f"reduction is '{self.reduction}'; accepted: 'mean' or 'sum'.")
        check_precision(self.precision)
        if self.micro_batch is not None and self.micro_batch < 1:
            raise BadInput(f"micro_batch is {self.micro_batch}; it must be at least 1, or None for the whole batch.")
        if self.micro_batch is not None and self.stochastic:
            raise BadInput("micro_batch and stochastic do not go together: dropout draws its masks for whole batches.")

    def parts(self, model: VisionModel, count: int) -> list[tuple[slice, float]]:
        """Which of ``count`` images go through the network together, and the weight of their loss in the batch's."""
        size = self.micro_batch or count
        if size >= count:
            return [(slice(0, count), 1.0)]
        anatomy = model.anatomy
        if anatomy.mixes_in_evaluation or (self.mode == "train" and anatomy.mixes_samples):
            raise BadInput(
                f"{model.name} lets the images of a batch see one another (BatchNorm in train mode does), so they "
                f"cannot go through it {size} at a time. Leave micro_batch out, or take evaluation mode."
            )
        starts = range(0, count, size)
        mean = self.reduction == "mean"
        sizes = [min(size, count - start) for start in starts]
        return [(slice(start, start + n), n / count if mean else 1.0) for start, n in zip(starts, sizes, strict=True)]

    def leaves(self, model: VisionModel) -> dict[str, Tensor]:
        """The trainable parameters as leaves of a new graph, sharing memory with the model's own."""
        parameters = dict(model.named_parameters())
        return {name: parameters[name].detach().requires_grad_() for name in trainable_names(model, self.trainable)}

    def loss(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The client's training loss at other ``parameters``, a scalar; the model stays as it was.

        In train mode the running statistics are updated in ``buffers``, or in copies that are thrown away.
        """
        stochastic = self.stochastic and generator is not None
        draws = nullcontext() if generator is None else global_draws(generator)
        with model.mode(self.mode == "train", stochastic=stochastic), draws, _explained(model):
            outputs = model.functional(parameters, self.fresh_buffers(model) if buffers is None else buffers, images)
        return model.loss(outputs, labels, reduction=self.reduction)

    def replay(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """The gradient by parameter name, and the new running statistics by buffer name where they are shared."""
        parameters, buffers = self.leaves(model), self.fresh_buffers(model)
        signal: dict[str, Tensor] = {}
        for where, weight in self.parts(model, len(images)):
            part, their = images[where], labels[where]
            loss = self.loss(model, part, their, parameters=parameters, buffers=buffers, generator=generator)
            found = gradients(loss * weight, list(parameters.values()), create_graph=create_graph)
            # A parameter the forward pass never used has no gradient, and no client sends one.
            for name, g in zip(parameters, found, strict=True):
                if g is not None:
                    signal[name] = signal[name] + g if name in signal else g
        sent = signal | buffers if self.share_buffers else signal
        return {name: rounded(value, self.precision) for name, value in sent.items()}

    def fresh_buffers(self, model: VisionModel) -> dict[str, Tensor]:
        """Copies of the buffers for a forward pass to write in; none in eval mode, where nothing is written."""
        return {n: b.clone() for n, b in model.named_buffers()} if self.mode == "train" else {}


@contextmanager
def _explained(model: VisionModel) -> Generator[None]:
    """What torch says of BatchNorm over a single value, in words that tell what to do."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise BadInput(
            f"{model.name} cannot train on this batch: a BatchNorm layer sees one value per channel, which has no "
            "variance. Take more or larger images, or evaluation mode."
        ) from error
