"""An inverter from its file."""

from __future__ import annotations

from pathlib import Path

import torch

from leakscope.attacks.learned.inverter import Inverter, read_file
from leakscope.attacks.learned.learned import LearnedAttack
from leakscope.attacks.learned.signature import Signature
from leakscope.attacks.registry import attack
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.models.weights import load_into
from leakscope.types import Knows

__all__ = ["load_inverter"]


def load_inverter(path: Path, model: VisionModel, *, any_weights: bool = False) -> Inverter:
    """The inverter that ``path`` holds, for ``model``; raises :class:`BadInput` where the file cannot be read."""
    about, tensors = read_file(path)
    signature: Signature = about["signature"]
    if signature.model != model.name or signature.input != model.input.shape:
        raise BadInput(
            f"'{path}' inverts {signature.model} on {signature.input}, not {model.name} on {model.input.shape}."
        )
    method = attack(about["attack"], **about["options"])
    if not isinstance(method, LearnedAttack):
        raise BadInput(f"'{path}' names the attack '{about['attack']}', which is not one that is fitted.")
    network = method.architecture.build(model, dict(signature.signal), signature.batch_size, torch.Generator())
    state = {name.removeprefix("network/"): value for name, value in tensors.items() if name.startswith("network/")}
    load_into(network, state, source=f"'{path}'")
    network.to(device=model.device, dtype=model.dtype).eval().requires_grad_(False)
    return Inverter(
        attack=about["attack"],
        options=about["options"],
        signature=signature,
        network=network,
        mean=tensors["mean"].to(model.mean),
        held_out=about["held_out"],
        steps=about["steps"],
        seconds=about["seconds"],
        needs=tuple(Knows(one) for one in about["needs"]),
        trace=tuple((str(a), int(b), float(c), float(d)) for a, b, c, d in about["trace"]),
        any_weights=any_weights,
        out_of_time=bool(about.get("out_of_time")),
    )
