"""Every closed form on one batch, scored and recorded."""

from __future__ import annotations

from pathlib import Path

import torch

from leakscope.attacks import attack
from leakscope.attacks.analytic.scan import ScanResult, analytic_scan
from leakscope.attacks.settings import fingerprint
from leakscope.audit.record import Record
from leakscope.audit.store import begin_record, forget, write_record
from leakscope.client import observe, trained_on
from leakscope.metrics import score
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, ClientProtocol, ThreatModel

__all__ = ["scan_batch"]


def scan_batch(
    model: VisionModel, batch: Batch, *, client: ClientProtocol, threat: ThreatModel, seed: int, folder: Path
) -> tuple[ScanResult, dict[str, Record]]:
    """Observe the client once, try every closed form, and write a record below ``folder`` for each that applied.

    Scores are the auditor's: the closed forms never see them. A record of an earlier scan goes where a closed form
    refuses now.
    """
    root = torch.Generator().manual_seed(seed)
    drawn = fork(root, "batch/0/client")
    seen = observe(model, batch, protocol=client, threat=threat, generator=drawn)
    truth = trained_on(batch, protocol=client, generator=drawn)
    generator = fork(root, "batch/0/attack")
    result = analytic_scan(seen, generator=generator)
    records: dict[str, Record] = {}
    for one in result.tried:
        place = folder / one.name
        if one.reconstruction is None:
            forget(place)
            continue
        place.mkdir(parents=True, exist_ok=True)
        begun = begin_record(
            run=fingerprint(attack(one.name), seen, generator),
            seed=seed,
            stream=f"scan/{one.name}",
            model=model,
            client=client,
            threat=seen.threat,
            attack_name=one.name,
            attack=attack(one.name),
        )
        scores = score(one.reconstruction, truth)
        records[one.name] = write_record(place, begun, batch=truth, reconstruction=one.reconstruction, scores=scores)
    return result, records
