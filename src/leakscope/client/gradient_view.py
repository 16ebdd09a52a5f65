"""A weight delta taken for a gradient: what a server makes of local training if it does not want to unroll it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from leakscope.client.aggregation import SecureAggregation
from leakscope.client.augmentation import Augmented
from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.client.local_optimisers import Sgd
from leakscope.errors import NotApplicable
from leakscope.types import ClientProtocol, Observation

__all__ = ["as_gradient"]


def as_gradient(observation: Observation) -> Observation:
    """The observation as if a FedSGD client had sent it: ∇L ≈ −Δ / (η K), momentum and weight decay reckoned in.

    L is the mean loss over all images. Exact for one step of SGD on all of them, else an approximation that worsens
    with η and K. What an adaptive optimiser sent is no multiple of a gradient, and refused. Signals of clients that
    this does not know are left as they are.
    """
    model, signal = observation.model, dict(observation.signal)
    protocol, parts = _single(observation.protocol)
    decay = 0.0
    if isinstance(protocol, FedAvg):
        optimiser = protocol.optimiser
        if not isinstance(optimiser, Sgd):
            raise NotApplicable(
                f"The client steps with {type(optimiser).__name__}: its delta is no multiple of a gradient. Unroll the "
                "training instead, as inverting-gradients and data-leakage-fl do."
            )
        count = observation.batch_size // parts if protocol.steps is None or protocol.reduction == "sum" else 1
        scale = -1 / optimiser.travel(len(protocol.plan(count)))
        if protocol.reduction == "sum":
            scale /= min(count, protocol.accumulate * (protocol.batch_size or count))
        objective, decay = protocol.objective, optimiser.weight_decay
    elif isinstance(protocol, FedSGD):
        scale = parts / observation.batch_size if protocol.reduction == "sum" else 1.0
        objective = protocol
    else:
        return observation
    scale /= _weight(observation.protocol)
    if objective is observation.protocol and scale == 1.0:
        return observation
    for name, weights in model.named_parameters():
        if name in signal:
            signal[name] = _descaled(signal[name], weights.detach(), scale, decay)
    return replace(observation, signal=signal, protocol=replace(objective, reduction="mean"))


def _single(protocol: ClientProtocol) -> tuple[ClientProtocol, int]:
    """What one client does, and how many there are."""
    if isinstance(protocol, Augmented):
        return _single(protocol.client)
    if isinstance(protocol, SecureAggregation):
        inner, parts = _single(protocol.client)
        return inner, parts * len(protocol.sizes)
    return protocol, 1


def _weight(protocol: ClientProtocol) -> float:
    """The sum of the weights with which clients were added up: 1 for a mean."""
    if isinstance(protocol, Augmented):
        return _weight(protocol.client)
    if isinstance(protocol, SecureAggregation):
        return sum(protocol.weights) * _weight(protocol.client)
    return 1.0


def _descaled(delta: Tensor, weights: Tensor, scale: float, decay: float) -> Tensor:
    return scale * delta - decay * weights if decay else scale * delta
