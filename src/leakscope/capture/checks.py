"""Look at a captured update before attacking it, so that a mistake in the set-up is never read as safety."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, final

import torch

from leakscope.capture.fit import changes, model_at, structure_problems, targets
from leakscope.capture.infer import Inferred, infer
from leakscope.capture.observation import signal_for
from leakscope.capture.replay import Client, Hints, Replay, compare
from leakscope.capture.update import Update
from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.client.local_optimisers import Adam, Sgd
from leakscope.client.precision import PRECISIONS
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.models.text import as_names
from leakscope.types import Batch

__all__ = ["TOLERANCE", "CheckReport", "believed_client", "check"]

TOLERANCE: Final = 1e-3
"""The relative replay error up to which client and belief agree, unless rounding alone makes more."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check found. An update that is not ``ok`` must not be called safe, whatever an attack on it returns.

    ``inferred`` is absent where the update does not even fit the model; ``replay`` where no images were given.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    inferred: Inferred | None = None
    client: Client | None = None
    replay: Replay | None = None

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def verified(self) -> bool:
        """Whether a replay of known images confirmed the believed client."""
        return self.ok and self.replay is not None and self.replay.agree


def check(
    update: Update,
    model: VisionModel,
    *,
    batch: Batch | None = None,
    client: Client | None = None,
    explain: bool = True,
) -> CheckReport:
    """Check ``update`` against ``model``; with the client's own ``batch``, replay the believed ``client`` on it.

    Without a ``client`` one is made up from what the framework told and what the update shows; see
    :func:`believed_client`. Where the replay disagrees, ``explain`` looks for the mistake, which takes a while.
    """
    problems = structure_problems(update, model)
    if problems:
        return CheckReport(problems=tuple(problems))
    placed = model_at(update, model)
    inferred = infer(update, placed)
    notes = list(inferred.notes)
    if not update.received and update.kind == "weights":
        notes.append("What the server had sent out was not captured: the model's own weights stand in for it.")
    if not inferred.moved:
        problems.append("Nothing moved: this update holds nothing to attack, which says nothing about other rounds.")
    if inferred.still:
        notes.append(f"Sent, but unchanged: {as_names(inferred.still)}.")
    if inferred.withheld:
        notes.append(f"Trainable, but not sent: {as_names(inferred.withheld)}.")
    if problems:
        return CheckReport(problems=tuple(problems), notes=tuple(notes), inferred=inferred)
    belief = client or believed_client(update, inferred, notes)
    if client is not None:
        problems += _contradictions(client, inferred, len(batch) if batch is not None else None)
    replay = None
    if batch is None:
        notes.append("No images were given, so the believed client was not replayed: nothing confirms it.")
    else:
        replay = _replayed(update, placed, batch, belief, inferred, explain)
        if client is None and replay.explained and replay.client is not None:
            # Nobody was wrong: nothing was believed. What fits is what the images tell.
            notes.append(f"Replaying these images fits if {' and '.join(replay.mistakes)}.")
            belief = replay.client
            replay = replace(replay, error=replay.best, buffers=None)
        problems += _mismatch(replay)
    return CheckReport(problems=tuple(problems), notes=tuple(notes), inferred=inferred, client=belief, replay=replay)


def believed_client(update: Update, inferred: Inferred, notes: list[str] | None = None) -> Client:
    """A client as the capture suggests it: mode, steps, learning rate; what it does not tell is said in ``notes``."""
    notes = [] if notes is None else notes
    mode = inferred.mode or "eval"
    if update.kind == "gradient":
        return FedSGD(mode=mode, precision=inferred.precision)
    steps, lr, size = inferred.steps, inferred.lr, update.fact("batch_size")
    if steps is None:
        notes.append("The number of local steps is not known: 1 is taken.")
    if lr is None:
        lr = inferred.travel / (steps or 1) if inferred.travel else 0.1
        notes.append(f"The learning rate is not known: {lr:.3g} is taken.")
    return FedAvg(
        steps=steps or 1,
        batch_size=int(size) if size else None,
        optimiser=Adam(lr=lr) if inferred.sign_like else Sgd(lr=lr),
        mode=mode,
        share="weights" if update.kind == "weights" else "delta",
        precision=inferred.precision,
    )


def _contradictions(client: Client, inferred: Inferred, count: int | None) -> list[str]:
    """What the update itself says against the believed client."""
    found: list[str] = []
    if inferred.mode is not None and client.mode != inferred.mode:
        found.append(f"The client is believed in {client.mode} mode; its running statistics show {inferred.mode} mode.")
    if not isinstance(client, FedAvg):
        return found
    rate = client.optimiser.lr
    if inferred.lr is not None and not math.isclose(rate, inferred.lr, rel_tol=0.02):
        found.append(f"The client is believed to train with lr {rate:.4g}; the update tells {inferred.lr:.4g}.")
    batches = sum(len(step.batches) for step in client.plan(count)) if count else client.steps
    if inferred.steps is not None and batches is not None and batches != inferred.steps:
        found.append(f"The client is believed to train on {batches} batches; the update tells {inferred.steps}.")
    return found


def _replayed(
    update: Update, model: VisionModel, batch: Batch, client: Client, inferred: Inferred, explain: bool
) -> Replay:
    if isinstance(client, FedSGD) and update.kind != "gradient":
        sent = dict(signal_for(update, model, client))
    elif isinstance(client, FedAvg) and update.kind == "gradient":
        raise BadInput("The capture holds gradients; a FedAvg client sends weights. Take a FedSGD client.")
    else:
        sent = changes(update, model)
    tolerance = max(TOLERANCE, 10 * _rounding(update, model, inferred))
    frozen = [name for name, p in model.named_parameters() if p.requires_grad and name not in sent]
    if frozen and not client.trainable:
        client = replace(client, trainable=tuple(sent))
    hints = Hints(mode=inferred.mode, steps=inferred.steps)
    buffers = targets(update, model)
    return compare(sent, model, batch, client, tolerance=tolerance, buffers=buffers, hints=hints, explain=explain)


def _rounding(update: Update, model: VisionModel, inferred: Inferred) -> float:
    """How far rounding what was sent can put its change off: ε‖θ‖ / ‖Δ‖ for weights, ε for anything else."""
    dtype = PRECISIONS[inferred.precision] or torch.promote_types(
        model.dtype, next(iter(v.dtype for v in update.sent.values() if v.is_floating_point()), model.dtype)
    )
    # Weights that were computed in the model's type are no finer than that, whatever they were sent in.
    epsilon = max(torch.finfo(dtype).eps, torch.finfo(model.dtype).eps)
    if update.kind != "weights":
        return epsilon
    change = changes(update, model)
    parameters = dict(model.named_parameters())
    size = math.sqrt(sum(float(parameters[name].detach().double().square().sum()) for name in change))
    moved = math.sqrt(sum(float(value.double().square().sum()) for value in change.values()))
    return epsilon * size / moved if moved else math.inf


def _mismatch(replay: Replay) -> list[str]:
    """A replay that disagrees, in words."""
    if replay.tolerance > 0.5:
        return ["The change is lost in rounding: no replay can confirm any client on this update."]
    if replay.agree:
        return []
    off = f"Replaying the believed client on these images misses the update by {replay.error:.2g}"
    if replay.explained and replay.mistakes:
        return [f"{off}; it agrees ({replay.best:.1g}) if {' and '.join(replay.mistakes)}. Correct the belief."]
    if replay.error <= replay.tolerance:
        return [
            f"The parameters agree, the running statistics do not ({replay.buffers:.2g}): other images, or momentum."
        ]
    nearer = (
        f" The nearest client found ({replay.best:.2g}): {' and '.join(replay.mistakes)}." if replay.mistakes else ""
    )
    return [
        f"{off}, and no likely mistake explains it.{nearer} The images or labels are others, the client adds noise or "
        "augments, or it trains in a way that is not known here. An attack under this belief would fail for that."
    ]
