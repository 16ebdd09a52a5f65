"""``observe``: the only place that turns private data into something shared. Defences act inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from leakscope.client.round import run_round
from leakscope.client.threats import HONEST_SERVER
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, ClientProtocol, Defence, Knows, Observation, Setting, ThreatModel

__all__ = ["observe"]


def observe(
    model: VisionModel,
    batch: Batch,
    *,
    protocol: ClientProtocol,
    belief: ClientProtocol | None = None,
    threat: ThreatModel = HONEST_SERVER,
    defences: Sequence[Defence] = (),
    public: Batch | None = None,
    others: Batch | None = None,
    rounds: int = 1,
    generator: torch.Generator,
) -> Observation:
    """Run the client on its private ``batch`` and keep what this server sees of it.

    What the threat model does not grant is left out of the observation, so that no attack can use it by accident.
    ``belief`` is what the server takes the client to do where that is not ``protocol``; a server that does not know the
    hyper-parameters of local training must have one.
    ``others`` are images that are not under attack, for defences that hide the batch among more (a larger batch,
    mixing, secure aggregation). With ``rounds`` the server asks that often for the same images at the same weights.
    """
    _check(model, batch)
    belief = _believed(protocol, belief, threat)
    if rounds < 1:
        raise BadInput(f"rounds is {rounds}; a server that sees anything sees at least 1.")
    if Knows.PUBLIC_DATA in threat.knows and public is None:
        threat = ThreatModel(name=threat.name, knows=threat.knows - {Knows.PUBLIC_DATA})
    images = batch.images.to(device=model.device, dtype=model.dtype)
    labels = batch.labels.to(model.device)
    setting = Setting(
        model=model, images=images, labels=labels, protocol=protocol, aware=belief, unaware=belief, others=others
    )
    done = [
        run_round(setting, defences, generator=fork(generator, f"round/{index}") if index else generator)
        for index in range(rounds)
    ]
    setting = done[0][0]
    hidden = set[str]() if Knows.BN_STATS in threat.knows else {name for name, _ in setting.model.named_buffers()}
    signals = [{name: value for name, value in signal.items() if name not in hidden} for _, signal in done]
    if not signals[0]:
        raise BadInput("The client shares nothing under this set-up: every parameter is frozen or withheld.")
    labels = setting.labels.argmax(1) if setting.labels.ndim == 2 else setting.labels.clone()
    return Observation(
        signal=signals[0],
        model=setting.model,
        protocol=setting.aware if Knows.DEFENCE in threat.knows else setting.unaware,
        input=replace(model.input, batch_size=len(setting.images) if Knows.BATCH_SIZE in threat.knows else None),
        threat=threat,
        labels=labels if Knows.LABELS in threat.knows else None,
        public=public if Knows.PUBLIC_DATA in threat.knows else None,
        defences=tuple(defences) if Knows.DEFENCE in threat.knows else (),
        rounds=tuple(signals[1:]),
    )


def _believed(protocol: ClientProtocol, belief: ClientProtocol | None, threat: ThreatModel) -> ClientProtocol:
    """What the server takes the client to do; the truth is never handed over for want of a guess."""
    hidden: tuple[str, ...] = getattr(protocol, "hidden", ())
    if belief is None and hidden and Knows.HYPERPARAMETERS not in threat.knows:
        raise BadInput(
            f"The threat model '{threat.name}' hides the client's hyper-parameters ({', '.join(hidden)}), so the "
            f"server must guess them: give belief={type(protocol).__name__}(…), or a threat model that knows them."
        )
    return protocol if belief is None else belief


def _check(model: VisionModel, batch: Batch) -> None:
    if batch.images.shape[1:] != model.input.shape:
        raise BadInput(
            f"The images are {tuple(batch.images.shape[1:])} (channels, height, width); {model.name} takes "
            f"{model.input.shape}. Resize them, or load the model with another image size."
        )
    if (batch.labels.ndim == 3) != model.input.boxes:
        takes = "boxes, (B, M, 5)" if model.input.boxes else "classes, one per image"
        raise BadInput(f"{model.name} learns from {takes}; the batch has labels {tuple(batch.labels.shape)}.")
    highest = int((batch.labels[..., 0] if model.input.boxes else batch.labels).max())
    if highest >= model.input.num_classes:
        raise BadInput(
            f"Label {highest} is out of range: {model.name} has {model.input.num_classes} classes, "
            f"0 to {model.input.num_classes - 1}."
        )
