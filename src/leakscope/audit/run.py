"""One attack on one batch, from the private images to the record; resumed where it was broken off."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from leakscope.attacks import Checkpoint, Optimisation
from leakscope.attacks.rounds import pooled
from leakscope.attacks.settings import fingerprint
from leakscope.audit.controls import without_signal
from leakscope.audit.record import FAILED, RECORD, Record, read_record
from leakscope.audit.store import begin_record, ensure_writable, forget, write_failure, write_record
from leakscope.capture import Update, check, to_observation
from leakscope.client import FedAvg, FedSGD, observe, trained_on
from leakscope.errors import BadInput, LeakscopeError
from leakscope.metrics import score
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import (
    Attack,
    Batch,
    Callback,
    ClientProtocol,
    Defence,
    Knows,
    Observation,
    Status,
    ThreatModel,
)

__all__ = ["CHECKPOINT", "Case", "Ran", "invert"]

log = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpoint"
"""The folder of a run's state, inside its output folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything the result of one attack on one batch depends on.

    ``stream`` names this batch's random streams, so that batches under one seed are independent of one another.
    ``belief``, ``defences``, ``public``, ``others`` and ``rounds`` are as :func:`leakscope.observe` takes them.
    ``update`` is what a real client sent of this batch, captured: it takes the place of running one.
    ``control`` replaces the signal by noise: what comes back then was never in the update. ``cell`` and ``role`` are a
    campaign's.
    """

    model: VisionModel
    batch: Batch
    client: ClientProtocol
    threat: ThreatModel
    attack_name: str
    attack: Attack
    seed: int = 0
    stream: str = "batch/0"
    belief: ClientProtocol | None = None
    defences: tuple[Defence, ...] = ()
    public: Batch | None = None
    others: Batch | None = None
    rounds: int = 1
    update: Update | None = None
    control: bool = False
    metrics: tuple[str, ...] | None = None
    cell: str = ""
    role: str = "attack"

    def observe(self) -> Observation:
        """What the server makes of this batch's update, or updates: several rounds are pooled into one signal."""
        root = torch.Generator().manual_seed(self.seed)
        seen = (
            self._captured(self.update)
            if self.update is not None
            else observe(
                self.model,
                self.batch,
                protocol=self.client,
                belief=self.belief,
                threat=self.threat,
                defences=self.defences,
                public=self.public,
                others=self.others,
                rounds=self.rounds,
                generator=fork(root, f"{self.stream}/client"),
            )
        )
        return pooled(without_signal(seen, fork(root, f"{self.stream}/control")) if self.control else seen)

    def truth(self) -> Batch:
        """What the client trained on, which an attack is scored against: its batch, augmented if it augments."""
        generator = fork(torch.Generator().manual_seed(self.seed), f"{self.stream}/client")
        return trained_on(self.batch, protocol=self.client, generator=generator)

    def _captured(self, update: Update) -> Observation:
        """A captured update is attacked only if these images, trained by this client, give it: else what would be
        judged is something that never happened, and "nothing found" would mean nothing."""
        found = check(update, self.model, batch=self.batch, client=_replayable(self.client))
        if not found.ok:
            raise BadInput("The captured update does not hold together: " + " ".join(found.problems))
        return to_observation(
            update,
            self.model,
            protocol=self.belief or self.client,
            threat=self.threat,
            batch_size=len(self.batch),
            labels=self.batch.labels if Knows.LABELS in self.threat.knows else None,
        )

    def begin(self, *, run: str, threat: ThreatModel) -> Record:
        """What is known before the attack starts."""
        return begin_record(
            run=run,
            seed=self.seed,
            stream=self.stream,
            model=self.model,
            client=self.client,
            threat=threat,
            defences=self.defences,
            attack_name=self.attack_name,
            attack=self.attack,
            cell=self.cell,
            role=self.role,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A record, and whether it was there already: the same run had ended before."""

    record: Record
    reused: bool


def invert(
    case: Case, folder: Path, *, fresh: bool = False, every: float = 10.0, callback: Callback | None = None
) -> Ran:
    """Observe the client, attack what it shared, score what came back, and write all of it to ``folder``.

    The same case in the same folder goes on from its checkpoint, written ``every`` so many seconds, or returns at once
    if it has ended. A folder that holds another case's record is refused unless ``fresh``, which starts over.
    """
    ensure_writable(folder)
    seen = case.observe()
    generator = fork(torch.Generator().manual_seed(case.seed), f"{case.stream}/attack")
    run = _run_key(case, seen, generator)
    if fresh:
        _start_over(folder)
    elif (earlier := _earlier(folder, run)) is not None:
        return Ran(record=earlier, reused=True)
    attack = case.attack
    if isinstance(attack, Optimisation):
        attack = replace(attack, checkpoint=Checkpoint(folder=folder / CHECKPOINT, every=every))
    begun = case.begin(run=run, threat=seen.threat)
    try:
        reconstruction = attack(seen, generator=generator, callback=callback)
        scores = score(reconstruction, case.truth(), case.metrics)
    except LeakscopeError:  # misuse, which leaves nothing worth a record
        raise
    except Exception as error:
        write_failure(folder, begun, error)
        raise
    record = write_record(folder, begun, batch=case.truth(), reconstruction=reconstruction, scores=scores)
    return Ran(record=record, reused=False)


def _replayable(client: ClientProtocol) -> FedSGD | FedAvg:
    if isinstance(client, FedSGD | FedAvg):
        return client
    raise BadInput(f"A captured update replays as a fedsgd or fedavg client; got {type(client).__name__}.")


def _run_key(case: Case, seen: Observation, generator: torch.Generator) -> str:
    """A digest of the run. How it is spread over processes does not change what it is."""
    attack = case.attack
    if isinstance(attack, Optimisation):
        attack = replace(attack, checkpoint=None, workers=1)
    labels = None if seen.labels is None else seen.labels.tolist()
    parts = (
        fingerprint(attack, seen, generator),
        case.attack_name,
        seen.threat.name,
        labels,
        case.batch.labels.tolist(),
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _earlier(folder: Path, run: str) -> Record | None:
    """The record of this run if it has ended; raises if the folder holds another's."""
    if not (folder / RECORD).exists():
        return None
    earlier = read_record(folder)
    if earlier.run != run:
        raise BadInput(
            f"'{folder}' holds another run: {earlier.attack} on {earlier.target.name}, {earlier.steps} steps, "
            f"{earlier.status}. Choose another output folder, or start over with --fresh."
        )
    return None if earlier.status in (Status.INTERRUPTED, FAILED) else earlier


def _start_over(folder: Path) -> None:
    forget(folder)
    for pattern in ("restart-*.pt", "restart-*.part"):
        for state in (folder / CHECKPOINT).glob(pattern):
            state.unlink()
