"""What the closed forms for a single image share: fetching gradients or saying what is missing, and the way out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from leakscope.attacks.labels import UNKNOWN_LABEL, recover_labels
from leakscope.errors import NotApplicable
from leakscope.models import VisionModel
from leakscope.types import Knows, Observation, Outcome, Reconstruction, Status

__all__ = ["Finding", "finish", "gradient", "parameter", "refuse_batches"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One recovered image, (C, H, W) pixels not yet clamped, and how far it is to be trusted.

    ``energy`` is the self-check: the relative size of what the solution leaves unexplained, without the truth.
    """

    pixels: Tensor
    energy: float
    evidence: Mapping[str, object]
    message: str


def refuse_batches(observation: Observation) -> None:
    """Raise where more than one image is known to be in the batch; a hidden batch size is left to the self-checks."""
    size = observation.input.batch_size
    if size is not None and size != 1:
        raise NotApplicable(
            f"The batch holds {size} images. This closed form needs exactly one: the gradients of several images "
            "arrive summed, and the equations for one of them no longer hold."
        )


def gradient(observation: Observation, name: str, what: str) -> Tensor:
    """The gradient of the parameter ``name`` in float64; ``what`` says what it is to people."""
    if name not in observation.signal:
        raise NotApplicable(f"The gradient of {what} ('{name}') is not in the signal: it is frozen or withheld.")
    value = observation.signal[name].double()
    if not bool(torch.isfinite(value).all()):
        raise NotApplicable(f"The gradient of {what} ('{name}') holds NaN or infinite values.")
    if not bool(value.any()):
        raise NotApplicable(
            f"The gradient of {what} ('{name}') is zero everywhere. A classifier that starts at zero passes nothing "
            "back in its first step; the next step's gradient will do."
        )
    return value


def parameter(model: VisionModel, name: str) -> Tensor:
    """A parameter or buffer (a fixed position table may be either) of the model by name, in float64."""
    parent, _, leaf = name.rpartition(".")
    value: Tensor = getattr(model.module.get_submodule(parent), leaf)
    return value.detach().double()


def finish(observation: Observation, found: Finding, started: float) -> Reconstruction:
    """The finding as a reconstruction: pixels clamped to [0, 1], with the share of them that had to be."""
    model = observation.model
    clamped = found.pixels.clamp(0, 1)
    # Rounding around 0 and 1 is no clamping worth reporting.
    outside = ((found.pixels - clamped).abs() > 1e-3).double().mean()
    labels, source = _label(observation)
    return Reconstruction(
        images=clamped[None].to(device=model.device, dtype=model.dtype),
        labels=labels,
        energy=found.energy,
        outcome=Outcome(status=Status.FINISHED, message=found.message),
        seconds=time.perf_counter() - started,
        evidence={**found.evidence, "clamped": float(outside), "label": source},
    )


def _label(observation: Observation) -> tuple[Tensor, str]:
    """The label, (1,), and how it was found: known, or read off the head's gradient; −1 where neither is possible."""
    if observation.labels is not None:
        return observation.labels, "known"
    # By now the equations have shown that there is one image, whether or not this server was told.
    single = replace(
        observation,
        input=replace(observation.input, batch_size=1),
        threat=observation.threat.plus(Knows.BATCH_SIZE),
    )
    try:
        return recover_labels(single, "idlg"), "iDLG"
    except NotApplicable as reason:
        return torch.full((1,), UNKNOWN_LABEL, device=observation.model.device), f"not recovered: {reason}"
