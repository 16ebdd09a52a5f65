"""A fitted inverter: an attack that answers an observation with one forward pass. Saved without pickle."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from leakscope.attacks.labels import UNKNOWN_LABEL, known_or_recovered
from leakscope.attacks.learned.losses import hungarian_mse
from leakscope.attacks.learned.signature import Signature
from leakscope.attacks.learned.training import Stage
from leakscope.errors import BadInput, NotApplicable
from leakscope.types import (
    Batch,
    Callback,
    Knows,
    Observation,
    Outcome,
    Progress,
    Reconstruction,
    Status,
)

__all__ = ["InverseNetwork", "Inverter", "read_file"]

_VERSION = 1


class InverseNetwork(nn.Module):
    """Maps what it reads of signals to images. Standardisation and other constants are buffers of its own."""

    def read(self, signal: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows this network works on, {name: (N, width)}, from signals {name: (N, …)}: small enough to keep."""
        raise NotImplementedError

    def start(self, rows: Mapping[str, Tensor], images: Tensor) -> None:
        """Before training: scales, and whatever has a closed form, from training pairs; images (N, B, C, H, W)."""
        raise NotImplementedError

    def forward(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Pixels (N, B, C, H, W), not yet clamped."""
        raise NotImplementedError

    replays: bool = True
    """Whether training needs what the client sends; a network that runs the client's part itself does not, unless
    defences change what comes out of it. Then signals are replayed step by step: features are too large to keep."""

    measured_on: int = 500
    """Over how many of the pairs held out an error is taken: few where each takes a pass through the client's part."""

    def reads(self, stage: Stage) -> bool:
        """Whether this stage is trained on what the client sends."""
        return True

    def stages(self, steps: int) -> tuple[Stage, ...]:
        """How it is trained: all of it at once, unless a network says otherwise."""
        return (Stage(name="all", steps=steps),)

    def loss(self, stage: Stage, rows: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """The training loss of some pairs."""
        return hungarian_mse(self(rows), images)

    def error(self, stage: Stage, rows: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """The mean squared error of what it makes of some pairs, in pixels."""
        return hungarian_mse(self(rows).clamp(0, 1), images)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Inverter:
    """Signal ↦ images by one forward pass of ``network``.

    ``attack`` and ``options`` name the method it was fitted by, ``needs`` what a server must know to have fitted it.
    ``mean`` (C, H, W) is the mean of the images it was trained on: what it would answer if the signal said nothing.
    ``held_out`` is its mean squared error on pairs it was not trained on. ``digest`` stands for the weights.
    ``any_weights``: answer observations of the same model at other weights, too. ``out_of_time``: its training was
    ended by a budget of seconds.
    """

    attack: str
    options: Mapping[str, object]
    signature: Signature
    network: InverseNetwork = field(repr=False, compare=False)
    mean: Tensor = field(repr=False, compare=False)
    held_out: float
    steps: int
    seconds: float
    needs: tuple[Knows, ...] = (Knows.PUBLIC_DATA,)
    trace: tuple[tuple[str, int, float, float], ...] = field(default=(), repr=False)
    any_weights: bool = False
    out_of_time: bool = False
    digest: str = ""

    def __post_init__(self) -> None:
        state = sorted(self.network.state_dict().items())
        digest = hashlib.blake2b(digest_size=16)
        for name, value in state:
            digest.update(
                name.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
        object.__setattr__(self, "digest", digest.hexdigest())

    @property
    def public(self) -> Batch | None:
        """What is left of the public images: their mean. It stands for them where an observation is to hold some.

        ``None`` where there were none: the images were made up.
        """
        if Knows.PUBLIC_DATA not in self.needs:
            return None
        return Batch(images=self.mean[None].clamp(0, 1), labels=torch.zeros(1, dtype=torch.long), names=("mean",))

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        began = time.perf_counter()
        observation.require(Knows.BATCH_SIZE, *self.needs)
        self.signature.check(observation, any_weights=self.any_weights)
        images = self.images({name: value[None] for name, value in observation.signal.items()})[0]
        seconds = time.perf_counter() - began
        if callback is not None:
            callback(Progress(step=1, steps=1, loss=self.held_out, best=self.held_out, seconds=seconds))
        if not bool(torch.isfinite(images).all()):
            outcome = Outcome(status=Status.DIVERGED, message="The signal drives the inverter out of all bounds.")
            images = torch.nan_to_num(images)
        else:
            message = f"One pass of {self.attack}, whose error on public images held out is {self.held_out:.3g}."
            if self.out_of_time:
                message += f" Its training ended when {self.seconds:.0f} s were up."
            status = Status.OUT_OF_TIME if self.out_of_time else Status.FINISHED
            outcome = Outcome(status=status, message=message)
        return Reconstruction(
            images=images.clamp(0, 1),
            labels=_labels(observation, generator),
            energy=self.held_out,
            outcome=outcome,
            seconds=time.perf_counter() - began,
            evidence={
                "inverter": self.digest,
                "held out": self.held_out,
                "training steps": self.steps,
                "training seconds": self.seconds,
            },
        )

    def images(self, signal: Mapping[str, Tensor]) -> Tensor:
        """Pixels (N, B, C, H, W) of N signals {name: (N, …)}, not clamped."""
        like = self.mean
        with torch.no_grad():
            rows = self.network.read({name: value.to(like) for name, value in signal.items()})
            return self.network(rows)

    def save(self, path: Path) -> None:
        """One safetensors file: weights as tensors, everything else as JSON in its header."""
        tensors = {f"network/{n}": v.detach().contiguous() for n, v in self.network.state_dict().items()}
        about = {
            "version": _VERSION,
            "attack": self.attack,
            "options": dict(self.options),
            "signature": asdict(self.signature),
            "held_out": self.held_out,
            "steps": self.steps,
            "seconds": self.seconds,
            "needs": [one.value for one in self.needs],
            "trace": self.trace,
            "out_of_time": self.out_of_time,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        save_file({**tensors, "mean": self.mean.contiguous()}, part, metadata={"inverter": json.dumps(about)})
        part.replace(path)

    def trusting(self) -> Inverter:
        """The same inverter, which answers for other weights of its model, too."""
        return replace(self, any_weights=True)


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What an inverter's file says of itself, and its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            meta: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = cast("dict[str, Any]", json.loads(meta["inverter"]))
        signature = about["signature"]
        signature["input"] = tuple(signature["input"])
        signature["signal"] = tuple((name, tuple(shape)) for name, shape in signature["signal"])
        about["signature"] = Signature(**signature)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"'{path}' is no inverter that can be read: {error!r}. `leakscope fit` writes them.") from error
    if about.get("version") != _VERSION:
        raise BadInput(f"'{path}' was written by another version ({about.get('version')}); fit it again.")
    return about, tensors


def _labels(observation: Observation, generator: torch.Generator) -> Tensor:
    """Known or read off the signal where that can be done: no inverter needs them."""
    try:
        return known_or_recovered(observation, generator).values
    except NotApplicable:
        return torch.full((observation.batch_size,), UNKNOWN_LABEL)
