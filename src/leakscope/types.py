"""The values that flow through the house, left to right.

    model + private batch ──observe──▶ Observation ──attack──▶ Reconstruction ──score──▶ Scores

Pixels are in [0, 1] everywhere outside a model. Hidden knowledge is absent (``None``), not merely unused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakscope.errors import BadInput, MissingKnowledge
from leakscope.functional.boxes import check_boxes

if TYPE_CHECKING:
    from leakscope.models import VisionModel

__all__ = [
    "Attack",
    "Batch",
    "Callback",
    "ClientProtocol",
    "Defence",
    "InputSpec",
    "Knows",
    "Observation",
    "Outcome",
    "Progress",
    "Reconstruction",
    "Setting",
    "Signal",
    "Status",
    "ThreatModel",
]

Signal = Mapping[str, Tensor]
"""What crosses the wire, by name: gradients, weight deltas, buffers or features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A client's private images, (B, C, H, W) in [0, 1], with their labels.

    Labels are (B,) class indices; for a detector (B, M, 5) boxes, see :mod:`leakscope.functional.boxes`.
    """

    images: Tensor
    labels: Tensor
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.ndim != 4 or not images.is_floating_point():
            raise BadInput(f"Images must be a float tensor (B, C, H, W); got {images.dtype} {tuple(images.shape)}.")
        if images.shape[0] == 0:
            raise BadInput("The batch is empty: at least one image is needed.")
        if not torch.isfinite(images).all():
            raise BadInput("The images hold NaN or infinite pixels; every pixel must lie in [0, 1].")
        low, high = float(images.min()), float(images.max())
        if low < 0 or high > 1:
            raise BadInput(
                f"Pixels must lie in [0, 1]; these span [{low:.3g}, {high:.3g}]. Divide bytes by 255; do not "
                "normalise: the model does that inside."
            )
        if labels.ndim == 3 and len(labels) == len(images):
            check_boxes(labels)
        elif labels.shape != images.shape[:1] or labels.is_floating_point():
            raise BadInput(
                f"Labels must be {images.shape[0]} class indices, one per image, or boxes (B, M, 5) for a detector; "
                f"got {labels.dtype} {tuple(labels.shape)}."
            )
        elif int(labels.min()) < 0:
            raise BadInput(f"Labels must not be negative; got {int(labels.min())}.")
        if self.names and len(self.names) != len(images):
            raise BadInput(f"{len(self.names)} names were given for {len(images)} images.")

    def __len__(self) -> int:
        return self.images.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """What the model takes: one image's shape (C, H, W), the number of classes, and how many images (if known).

    ``boxes``: whether labels are boxes around objects, not classes of images: the model is a detector.
    """

    shape: tuple[int, int, int]
    num_classes: int
    batch_size: int | None = None
    boxes: bool = False


class Knows(enum.StrEnum):
    """One thing a server may know beyond the model and the signal."""

    BATCH_SIZE = "batch size"
    HYPERPARAMETERS = "hyper-parameters"
    LABELS = "labels"
    BN_STATS = "normalisation statistics"
    PUBLIC_DATA = "public data"
    DEFENCE = "defence"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreatModel:
    """A named attacker: what the server knows besides the model it sent out and the signal it got back."""

    name: str
    knows: frozenset[Knows] = frozenset()

    def plus(self, *more: Knows) -> ThreatModel:
        """The same server, knowing more."""
        added = [k for k in more if k not in self.knows]
        return ThreatModel(name=" + ".join([self.name, *added]), knows=self.knows | set(added))


@runtime_checkable
class ClientProtocol(Protocol):
    """What a client does with its images before it sends anything.

    ``replay`` is written once: the client calls it to make the signal, the attacker calls it on candidates.
    """

    def replay(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """The signal for pixels (B, C, H, W) and labels: (B,) indices, (B, K) probabilities or (B, M, 5) boxes.

        With ``create_graph`` it can be differentiated in both. ``generator`` feeds stochastic layers, on the client.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a client is about to do: the model, its private images and labels, the protocol. A defence may change it.

    Labels are (B,) class indices, or (B, K) probabilities where inputs are mixed. ``others`` are further images of
    this client, or of other clients, which a defence may draw on. A server that knows the defences takes the client
    to follow ``aware``, one that does not ``unaware``.
    """

    model: VisionModel
    images: Tensor
    labels: Tensor
    protocol: ClientProtocol
    aware: ClientProtocol
    unaware: ClientProtocol
    others: Batch | None = None

    def follow(self, change: Callable[[ClientProtocol], ClientProtocol], *, openly: bool = False) -> Setting:
        """The same, with another protocol; ``openly`` where no server can miss it (it orders the training itself)."""
        return replace(
            self,
            protocol=change(self.protocol),
            aware=change(self.aware),
            unaware=change(self.unaware) if openly else self.unaware,
        )


class Defence(Protocol):
    """Something a client does to give less away. Subclass it, and override what the defence acts on.

    ``prepare`` changes batch, model or protocol before training; calling the defence changes the signal before it is
    sent. ``as_seen``, ``pool`` and ``deviation`` are the view of a server that knows the defence. By default nothing is
    changed.
    """

    __slots__ = ()

    name: ClassVar[str] = ""
    same_images: ClassVar[bool] = True
    """Whether every round trains on the same images; where not, a server cannot pool rounds."""

    def prepare(self, setting: Setting, *, generator: torch.Generator) -> Setting:
        """What the client trains on, and how."""
        return setting

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        """What the client sends in place of ``signal``."""
        return signal

    def as_seen(self, replayed: Signal, observed: Signal) -> Signal:
        """A candidate's replay as this defence would have let it through, differentiable, given what was observed."""
        return replayed

    def pool(self, signals: Sequence[Signal]) -> tuple[Signal, Defence]:
        """Several rounds' signals of the same images as one, and the defence that would have left that much."""
        stacked = {name: torch.stack([signal[name] for signal in signals]) for name in signals[0]}
        # A counter (BatchNorm's number of batches) has no mean.
        return {name: v.mean(0) if v.is_floating_point() else v[0] for name, v in stacked.items()}, self

    def deviation(self, observed: Signal, batch_size: int) -> Mapping[str, float]:
        """The standard deviation of the noise in each tensor of an observed signal; empty where there is none."""
        return {}

    def bytes_sent(self, signal: Signal) -> int:
        """The size of a sent ``signal`` as this defence encodes it."""
        return sum(value.numel() * value.element_size() for value in signal.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything the server sees, and nothing else: the only argument an attack gets.

    ``protocol`` is the server's *belief* about the client; for hidden hyper-parameters it may be wrong on purpose.
    ``rounds`` are the signals of further rounds on the same images and weights, if the server asked more than once.
    """

    signal: Signal
    model: VisionModel
    protocol: ClientProtocol
    input: InputSpec
    threat: ThreatModel
    labels: Tensor | None = None
    public: Batch | None = None
    defences: tuple[Defence, ...] = ()
    rounds: tuple[Signal, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "signal", dict(self.signal))

    def require(self, *needed: Knows) -> None:
        """Raise :class:`MissingKnowledge` before any work if this server lacks something an attack needs."""
        lacking = [k for k in needed if k not in self.threat.knows]
        if lacking:
            raise MissingKnowledge(
                f"This attack needs {' and '.join(lacking)}, which the threat model '{self.threat.name}' hides. "
                "Choose a threat model that grants it, or an attack that does without."
            )

    @property
    def batch_size(self) -> int:
        """The number of images, for attacks that need it."""
        self.require(Knows.BATCH_SIZE)
        assert self.input.batch_size is not None
        return self.input.batch_size

    @property
    def gradients(self) -> Signal:
        """The part of the signal that belongs to parameters, in the model's order."""
        return {name: self.signal[name] for name, _ in self.model.named_parameters() if name in self.signal}

    @property
    def buffers(self) -> Signal:
        """The part of the signal that belongs to buffers (BatchNorm's running statistics), if the client shares it."""
        return {name: self.signal[name] for name, _ in self.model.named_buffers() if name in self.signal}


class Status(enum.StrEnum):
    """How an attack ended."""

    FINISHED = "finished"
    PLATEAU = "plateau"
    TARGET_REACHED = "target reached"
    OUT_OF_TIME = "out of time"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A status with a message for people."""

    status: Status
    message: str

    @property
    def ok(self) -> bool:
        return self.status is not Status.DIVERGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """What an attack brought back.

    ``energy`` is the attacker's own loss at these images: the only thing a realistic attacker can choose by.
    ``trace`` holds the measured losses, one list per restart; ``evidence`` what an attack found out on its way
    (rank, condition number, self-check, which gradient was used). ``seconds`` counts earlier sessions of a resumed run.
    """

    images: Tensor
    labels: Tensor
    energy: float
    outcome: Outcome
    trace: tuple[tuple[float, ...], ...] = ()
    steps: int = 0
    seconds: float = 0.0
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a running attack tells its callback; ``images`` and ``labels`` make the best candidate so far, if asked."""

    step: int
    steps: int
    loss: float
    best: float
    seconds: float
    restart: int = 0
    restarts: int = 1
    images: Callable[[], Tensor] | None = None
    labels: Callable[[], Tensor] | None = None


Callback = Callable[[Progress], None]


@runtime_checkable
class Attack(Protocol):
    """A configured method: sees an observation and nothing else."""

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction: ...
