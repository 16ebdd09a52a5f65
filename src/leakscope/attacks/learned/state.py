"""A training's whole state on disk: replaced in one move, without pickle, read only by the training that wrote it."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from leakscope.attacks.optimisation import Checkpoint
from leakscope.errors import BadInput

__all__ = ["History", "Saved", "Store"]

log = logging.getLogger(__name__)

_STATE: Final = "training.safetensors"


@final
@dataclass(slots=True, kw_only=True)
class History:
    """What a training did: (stage, step, training loss, held-out error) at every measurement, and its time.

    ``out_of_time``: a budget of seconds ended it, or some stage of it.
    """

    rows: list[tuple[str, int, float, float]] = field(default_factory=list[tuple[str, int, float, float]])
    best: float = math.inf
    best_step: int = 0
    seconds: float = 0.0
    step: int = 0
    in_vain: int = 0
    stage: int = 0
    seen: float = 0.0
    out_of_time: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    tensors: dict[str, Tensor]
    history: History

    @property
    def best(self) -> dict[str, Tensor]:
        return {n.removeprefix("best/"): v for n, v in self.tensors.items() if n.startswith("best/")}

    def restore(self, network: nn.Module, moving: dict[str, nn.Parameter], optimiser: torch.optim.Adam) -> None:
        own = {n.removeprefix("now/"): v for n, v in self.tensors.items() if n.startswith("now/")}
        network.load_state_dict(own)
        state: dict[int, dict[str, Tensor]] = {}
        for index, name in enumerate(moving):
            parts = {part: self.tensors.get(f"{part}/{name}") for part in ("step", "exp_avg", "exp_avg_sq")}
            if all(value is not None for value in parts.values()):
                state[index] = cast("dict[str, Tensor]", parts)
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


@final
class Store:
    """One file, replaced in one move, without pickle, read only by the training that wrote it."""

    def __init__(self, checkpoint: Checkpoint, key: str, generator: torch.Generator) -> None:
        self.path: Path = checkpoint.folder / _STATE
        seed = generator.get_state().numpy().tobytes()
        self.key = hashlib.blake2b(key.encode() + seed, digest_size=16).hexdigest()

    def save(
        self,
        network: nn.Module,
        moving: dict[str, nn.Parameter],
        optimiser: torch.optim.Adam,
        best: dict[str, Tensor],
        history: History,
    ) -> None:
        tensors = {f"now/{n}": v.detach() for n, v in network.state_dict().items()}
        tensors |= {f"best/{n}": v for n, v in best.items()}
        for name, parameter in moving.items():
            for part, value in optimiser.state[parameter].items():
                tensors[f"{part}/{name}"] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part_file = self.path.with_suffix(f".{os.getpid()}.part")
        meta = {"key": self.key, "history": json.dumps(asdict(history))}
        save_file({n: v.contiguous() for n, v in tensors.items()}, part_file, metadata=meta)
        part_file.replace(self.path)

    def load(self) -> Saved | None:
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                meta: dict[str, str] = file.metadata() or {}
                if meta.get("key") != self.key:
                    log.warning("%s belongs to another training: starting afresh.", self.path.name)
                    return None
                told: dict[str, Any] = json.loads(meta["history"])
                told["rows"] = [tuple(row) for row in told["rows"]]
                return Saved(
                    tensors={name: file.get_tensor(name) for name in file.keys()},  # noqa: SIM118
                    history=History(**told),
                )
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"The checkpoint {self.path} cannot be read ({error}). Delete it to start afresh."
            ) from error
