"""``observe``: the only place that turns private data into something shared. Defences act inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from leakscope.client.threats import HONEST_SERVER
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, ClientProtocol, Defence, Knows, Observation, ThreatModel

__all__ = ["observe"]


def observe(
    model: VisionModel,
    batch: Batch,
    *,
    protocol: ClientProtocol,
    threat: ThreatModel = HONEST_SERVER,
    defences: Sequence[Defence] = (),
    public: Batch | None = None,
    generator: torch.Generator,
) -> Observation:
    """Run the client on its private ``batch`` and keep what this server sees of it.

    What the threat model does not grant is left out of the observation, so that no attack can use it by accident.
    """
    _check(model, batch)
    if Knows.PUBLIC_DATA in threat.knows and public is None:
        threat = ThreatModel(name=threat.name, knows=threat.knows - {Knows.PUBLIC_DATA})
    images = batch.images.to(device=model.device, dtype=model.dtype)
    labels = batch.labels.to(model.device)
    signal = protocol.replay(model, images, labels, generator=fork(generator, "client"))
    for index, defence in enumerate(defences):
        signal = defence(signal, generator=fork(generator, f"defence/{index}"))
    if Knows.BN_STATS not in threat.knows:
        buffers = {name for name, _ in model.named_buffers()}
        signal = {name: value for name, value in signal.items() if name not in buffers}
    if not signal:
        raise BadInput("The client shares nothing under this set-up: every parameter is frozen or withheld.")
    return Observation(
        signal={name: value.detach() for name, value in signal.items()},
        model=model,
        protocol=protocol,
        input=replace(model.input, batch_size=len(batch) if Knows.BATCH_SIZE in threat.knows else None),
        threat=threat,
        labels=labels.clone() if Knows.LABELS in threat.knows else None,
        public=public if Knows.PUBLIC_DATA in threat.knows else None,
        defences=tuple(defences) if Knows.DEFENCE in threat.knows else (),
    )


def _check(model: VisionModel, batch: Batch) -> None:
    if batch.images.shape[1:] != model.input.shape:
        raise BadInput(
            f"The images are {tuple(batch.images.shape[1:])} (channels, height, width); {model.name} takes "
            f"{model.input.shape}. Resize them, or load the model with another image size."
        )
    highest = int(batch.labels.max())
    if highest >= model.input.num_classes:
        raise BadInput(
            f"Label {highest} is out of range: {model.name} has {model.input.num_classes} classes, "
            f"0 to {model.input.num_classes - 1}."
        )
