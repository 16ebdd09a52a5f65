"""Files of a training: its state after an epoch, and the weights it ends with. Both are safetensors: no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from leakscope.audit.store import replacing
from leakscope.errors import BadInput
from leakscope.models import VisionModel

__all__ = ["restore_checkpoint", "save_checkpoint", "save_trained", "trained_by"]


def save_trained(path: Path, model: VisionModel, about: Mapping[str, Any]) -> None:
    """Write the weights, with what is known ``about`` their training."""
    state = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    with replacing(path) as part:
        save_file(state, part, metadata={"training": json.dumps(about)})


def trained_by(path: Path) -> Mapping[str, Any] | None:
    """What a file of weights says about the training it comes from; ``None`` if it says nothing."""
    try:
        with safe_open(path, framework="pt") as opened:
            said = (opened.metadata() or {}).get("training")
        return None if said is None else json.loads(said)
    except (SafetensorError, OSError, ValueError) as error:
        raise BadInput(f"'{path}' is not a readable safetensors file: {error}") from error


def save_checkpoint(path: Path, key: str, model: VisionModel, optimiser: torch.optim.Optimizer, done: int) -> None:
    """The model and its optimiser after ``done`` epochs of the training with this ``key``."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser/{index}/{name}": value for name, value in state.items() if isinstance(value, Tensor)}
    content = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    with replacing(path) as part:
        save_file(content, part, metadata={"key": key, "epochs": str(done)})


def restore_checkpoint(path: Path, key: str, model: VisionModel, optimiser: torch.optim.Optimizer) -> int:
    """Put back what was saved; how many epochs are done."""
    try:
        with safe_open(path, framework="pt") as opened:
            said = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, OSError) as error:
        raise BadInput(f"The checkpoint '{path}' cannot be read ({error}). Delete it to start afresh.") from error
    if said.get("key") != key:
        raise BadInput(
            f"The checkpoint '{path}' belongs to another training: the model, its start, the images or a setting is "
            "different. Start over with --fresh, or choose another output."
        )
    model.load_state_dict({n.removeprefix("model/"): t for n, t in tensors.items() if n.startswith("model/")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser/"):
            _, index, entry = name.split("/")
            state.setdefault(int(index), {})[entry] = tensor
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    return int(said["epochs"])
