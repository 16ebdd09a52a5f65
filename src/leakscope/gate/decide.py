"""Attack an update before it leaves, within a budget, and decide. It fails closed: only a finished attempt can pass.

Nothing that is kept of a decision holds an image, a pixel or a statistic of pixels: a :class:`Decision` has names,
counts and seconds.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, final

import torch

from leakscope.attacks import attack
from leakscope.attacks.analytic.scan import closed_forms
from leakscope.capture.checks import check
from leakscope.capture.observation import to_observation
from leakscope.capture.replay import Client
from leakscope.capture.update import Update
from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.client.local_optimisers import Sgd
from leakscope.client.threats import WITH_STATISTICS
from leakscope.errors import BadInput, NotApplicable
from leakscope.metrics import METRICS, score
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, Observation, Progress, Reconstruction

__all__ = ["Decision", "Policy", "Reason", "gate"]

log = logging.getLogger(__name__)

_THRESHOLDS: Final = {"psnr": 18.0, "ssim": 0.5}


class Reason(enum.StrEnum):
    """Why a gate decided as it did."""

    PASSED = "passed"
    LEAKS = "images came out"
    UNVERIFIED = "the replay does not confirm the client"
    OUT_OF_TIME = "the budget of seconds was used up"
    FAILED = "an error"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What may not leave, and how much work goes into finding out.

    ``thresholds``: an image counts as come out when *any* of these metrics reaches its value. ``steps`` and
    ``seconds`` bound the attack; ``seconds`` everything together, looked at between closed forms and at every step.
    ``replay`` is the relative error up to which the client's own replay must agree with the update: an attack on a
    client that is not understood proves nothing. A client that adds noise on purpose has to allow for it here.
    """

    thresholds: Mapping[str, float] = field(default_factory=lambda: dict(_THRESHOLDS))
    attack: str = "inverting-gradients"
    steps: int = 100
    seconds: float = 60.0
    replay: float = 1e-3

    def __post_init__(self) -> None:
        if not self.thresholds:
            raise BadInput("A policy without thresholds would let everything pass. Name a metric and a value.")
        for name, value in self.thresholds.items():
            METRICS[name]  # raises for a name that is not known
            if not math.isfinite(value):
                raise BadInput(f"The threshold of {name} is {value}; it must be a finite number.")
        if self.steps < 1 or not (math.isfinite(self.seconds) and self.seconds > 0):
            raise BadInput(f"The budget is {self.steps} steps and {self.seconds} s; both must be more than 0.")
        if not self.replay > 0:
            raise BadInput(f"replay is {self.replay}; it must be more than 0.")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether an update may be sent, why, and what it cost to find out.

    ``by`` names the attack that got through, ``exposed`` counts the images it brought back, out of ``images``.
    ``tried`` are the attacks that ran; ``steps`` those of the optimisation.
    """

    send: bool
    reason: Reason
    detail: str = ""
    by: str = ""
    exposed: int = 0
    images: int = 0
    tried: tuple[str, ...] = ()
    steps: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Plain data for a log; it holds no image and nothing computed from pixels but a count."""
        return {**asdict(self), "reason": str(self.reason), "tried": list(self.tried)}


class _OutOfTime(Exception):
    """The budget is used up."""


def gate(
    update: Update,
    model: VisionModel,
    batch: Batch,
    *,
    client: Client | None = None,
    policy: Policy | None = None,
    generator: torch.Generator,
) -> Decision:
    """Decide whether ``update``, made from the client's own ``batch``, may be sent.

    The attacker of a gate knows labels and statistics, the client's recipe, and tries every closed form first. Any
    error, any doubt about the client, and a budget that runs out all keep the update back.
    """
    policy = policy or Policy()
    began = time.monotonic()
    work = _Work(policy=policy, deadline=began + policy.seconds)
    try:
        decision = _decided(work, update, model, batch, client, generator)
    except _OutOfTime:
        decision = Decision(send=False, reason=Reason.OUT_OF_TIME)
    except Exception as error:
        # Only the kind of error: a message may quote values.
        log.debug("the gate failed", exc_info=True)
        decision = Decision(send=False, reason=Reason.FAILED, detail=type(error).__name__)
    seconds = time.monotonic() - began
    if decision.send and seconds > policy.seconds:
        decision = Decision(send=False, reason=Reason.OUT_OF_TIME)
    return Decision(
        send=decision.send,
        reason=decision.reason,
        detail=decision.detail,
        by=decision.by,
        exposed=decision.exposed,
        images=len(batch),
        tried=tuple(work.tried),
        steps=work.steps,
        seconds=seconds,
    )


@dataclass(slots=True, kw_only=True)
class _Work:
    """The budget, and what was done with it."""

    policy: Policy
    deadline: float
    tried: list[str] = field(default_factory=list[str])
    steps: int = 0

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise _OutOfTime

    def on_step(self, progress: Progress) -> None:
        self.steps = max(self.steps, progress.step)
        self.check_time()


def _decided(
    work: _Work, update: Update, model: VisionModel, batch: Batch, client: Client | None, generator: torch.Generator
) -> Decision:
    report = check(update, model, batch=batch, client=client, explain=client is None)
    work.check_time()
    if report.replay is None or report.client is None:
        return Decision(send=False, reason=Reason.UNVERIFIED, detail="the update does not fit the model")
    # Running statistics leak, too: those of other images than these must not leave unseen.
    off = max(report.replay.error, report.replay.buffers or 0.0)
    if off > work.policy.replay:
        return Decision(send=False, reason=Reason.UNVERIFIED, detail="the replay error is above the policy's")
    seen = to_observation(
        update, model, protocol=report.client, threat=WITH_STATISTICS, labels=batch.labels, batch_size=len(batch)
    )
    for name, found in _attempts(work, seen, _gradient_view(seen), generator):
        scores = score(found, batch, list(work.policy.thresholds))
        over = torch.zeros(len(batch), dtype=torch.bool)
        for metric, limit in work.policy.thresholds.items():
            values = scores[metric]
            if bool(values.isnan().any()):
                return Decision(send=False, reason=Reason.FAILED, detail=f"{metric} is not defined for these images")
            over |= values >= limit if scores.higher_is_better[metric] else values <= limit
        if bool(over.any()):
            return Decision(send=False, reason=Reason.LEAKS, by=name, exposed=int(over.sum()))
        work.check_time()
    return Decision(send=True, reason=Reason.PASSED)


def _gradient_view(seen: Observation) -> Observation:
    """The same update for closed forms, which want a gradient: −Δ/(η·steps) of a client that trained by plain SGD."""
    client = seen.protocol
    if not isinstance(client, FedAvg) or not isinstance(client.optimiser, Sgd):
        return seen
    far = client.optimiser.travel(len(client.plan(seen.batch_size)))
    names = {name for name, _ in seen.model.named_parameters()}
    signal = {name: value / -far if name in names else value for name, value in seen.signal.items()}
    gradient = FedSGD(mode=client.mode, reduction=client.reduction, trainable=client.trainable)
    return Observation(
        signal=signal, model=seen.model, protocol=gradient, input=seen.input, threat=seen.threat, labels=seen.labels
    )


def _attempts(
    work: _Work, seen: Observation, gradient: Observation, generator: torch.Generator
) -> Iterator[tuple[str, Reconstruction]]:
    for name in closed_forms():
        try:
            found = attack(name)(gradient, generator=fork(generator, f"gate/{name}"), callback=work.on_step)
        except NotApplicable:
            work.check_time()
            continue
        work.tried.append(name)
        yield name, found
    work.steps = 0
    name = work.policy.attack
    view = gradient if isinstance(seen.protocol, FedAvg) and len(seen.protocol.plan(seen.batch_size)) == 1 else seen
    found = attack(name, steps=work.policy.steps)(
        view, generator=fork(generator, f"gate/{name}"), callback=work.on_step
    )
    work.tried.append(name)
    if not found.outcome.ok or work.steps < work.policy.steps:
        raise RuntimeError(f"The attack ended early: {found.outcome.message}")
    yield name, found
