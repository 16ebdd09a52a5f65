"""More local steps: what is sent is the sum of what several steps did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from leakscope.client.defences._parts import finite, whole
from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.client.local_optimisers import Sgd
from leakscope.client.registry import register_defence
from leakscope.errors import BadInput
from leakscope.types import ClientProtocol, Defence, Setting

__all__ = ["MoreLocalSteps"]


@final
@register_defence("more-local-steps", cites="mcmahan2017")
@dataclass(frozen=True, slots=True, kw_only=True)
class MoreLocalSteps(Defence):
    """Trains for ``steps`` steps of SGD at learning rate ``lr`` before it sends how the weights moved.

    A client that trains locally already keeps its optimiser and its learning rate, and takes this many steps. The
    server knows: it orders the training.
    """

    steps: int = 5
    lr: float = 0.1

    def __post_init__(self) -> None:
        whole("steps", self.steps)
        finite("lr", self.lr, strict=True)

    def prepare(self, setting: Setting, *, generator: torch.Generator) -> Setting:
        return setting.follow(self._longer, openly=True)

    def _longer(self, protocol: ClientProtocol) -> ClientProtocol:
        if isinstance(protocol, FedAvg):
            return replace(protocol, steps=self.steps, epochs=None)
        if not isinstance(protocol, FedSGD):
            raise BadInput(f"more-local-steps needs a client that trains; this one is a {type(protocol).__name__}.")
        return FedAvg(
            steps=self.steps,
            optimiser=Sgd(lr=self.lr),
            mode=protocol.mode,
            reduction=protocol.reduction,
            share_buffers=protocol.share_buffers,
            stochastic=protocol.stochastic,
            precision=protocol.precision,
            trainable=protocol.trainable,
        )
