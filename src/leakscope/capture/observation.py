"""From a captured update to the only thing an attack gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from leakscope.capture.fit import changes, model_at, targets
from leakscope.capture.update import Update
from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.types import ClientProtocol, Knows, Observation, ThreatModel

__all__ = ["signal_for", "to_observation"]


def to_observation(
    update: Update,
    model: VisionModel,
    *,
    protocol: ClientProtocol,
    threat: ThreatModel,
    batch_size: int | None = None,
    labels: Tensor | None = None,
) -> Observation:
    """What this server sees of a captured update, at the weights it had sent out.

    ``protocol`` is the server's belief about the client. The same rules as in ``observe`` hold: what the threat model
    does not grant (running statistics, batch size, labels) is left out. ``batch_size`` is the number of images; by
    default what the framework told (``examples``), or the number of labels.
    """
    placed = model_at(update, model)
    signal = dict(signal_for(update, placed, protocol))
    if Knows.BN_STATS in threat.knows:
        signal |= targets(update, placed)
    if Knows.LABELS in threat.knows and labels is None:
        raise BadInput(f"The threat model '{threat.name}' knows the labels; none were given.")
    told = update.fact("examples")
    size = batch_size or (len(labels) if labels is not None else None) or (int(told) if told else None)
    if Knows.BATCH_SIZE in threat.knows and size is None:
        raise BadInput(
            f"The threat model '{threat.name}' knows the number of images, and the capture does not tell it. "
            "Give batch_size."
        )
    return Observation(
        signal=signal,
        model=placed,
        protocol=protocol,
        input=replace(model.input, batch_size=size if Knows.BATCH_SIZE in threat.knows else None),
        threat=threat,
        labels=labels if Knows.LABELS in threat.knows else None,
    )


def signal_for(update: Update, model: VisionModel, protocol: ClientProtocol) -> Mapping[str, Tensor]:
    """The parameters' part of the signal, in the quantity that ``protocol`` replays.

    A delta becomes a gradient, g = −Δ / η, only for a client that took one step of plain SGD with a known η.
    """
    found = changes(update, model)
    if isinstance(protocol, FedAvg):
        if update.kind == "gradient":
            raise BadInput("The capture holds gradients; a FedAvg client sends weights. Take FedSGD as the client.")
        return found
    if not isinstance(protocol, FedSGD):
        raise BadInput(f"A captured update replays as FedSGD or FedAvg; got {type(protocol).__name__}.")
    if update.kind == "gradient":
        return found
    lr, steps = update.fact("lr"), update.fact("steps")
    if lr is None or lr <= 0 or steps != 1:
        raise BadInput(
            "The capture holds weights, and FedSGD replays a gradient. That is −Δ/η after one step of SGD only, and "
            f"the capture tells lr={lr}, steps={steps}. Take FedAvg as the client (--local-steps)."
        )
    return {name: value / -lr for name, value in found.items()}
