"""One attack on one batch, from the private images to the record; resumed where it was broken off."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from leakscope.attacks import Checkpoint, Optimisation
from leakscope.attacks.settings import fingerprint
from leakscope.audit.record import FAILED, RECORD, Record, read_record
from leakscope.audit.store import begin_record, ensure_writable, forget, write_failure, write_record
from leakscope.client import observe
from leakscope.errors import BadInput, LeakscopeError
from leakscope.metrics import score
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Attack, Batch, Callback, ClientProtocol, Observation, Status, ThreatModel

__all__ = ["CHECKPOINT", "Case", "Ran", "invert"]

log = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpoint"
"""The folder of a run's state, inside its output folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything the result of one attack on one batch depends on.

    ``stream`` names this batch's random streams, so that batches under one seed are independent of one another.
    """

    model: VisionModel
    batch: Batch
    client: ClientProtocol
    threat: ThreatModel
    attack_name: str
    attack: Attack
    seed: int = 0
    stream: str = "batch/0"


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
    root = torch.Generator().manual_seed(case.seed)
    seen = observe(
        case.model,
        case.batch,
        protocol=case.client,
        threat=case.threat,
        generator=fork(root, f"{case.stream}/client"),
    )
    generator = fork(root, f"{case.stream}/attack")
    run = _run_key(case, seen, generator)
    if fresh:
        _start_over(folder)
    elif (earlier := _earlier(folder, run)) is not None:
        return Ran(record=earlier, reused=True)
    attack = case.attack
    if isinstance(attack, Optimisation):
        attack = replace(attack, checkpoint=Checkpoint(folder=folder / CHECKPOINT, every=every))
    begun = begin_record(
        run=run,
        seed=case.seed,
        stream=case.stream,
        model=case.model,
        client=case.client,
        threat=seen.threat,
        attack_name=case.attack_name,
        attack=case.attack,
    )
    try:
        reconstruction = attack(seen, generator=generator, callback=callback)
        scores = score(reconstruction, case.batch)
    except LeakscopeError:  # misuse, which leaves nothing worth a record
        raise
    except Exception as error:
        write_failure(folder, begun, error)
        raise
    record = write_record(folder, begun, batch=case.batch, reconstruction=reconstruction, scores=scores)
    return Ran(record=record, reused=False)


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
