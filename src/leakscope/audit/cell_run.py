"""Running one cell: from its plain data to its record, in any process, on any machine."""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from leakscope.attacks import Optimisation
from leakscope.attacks.configure import configured
from leakscope.attacks.learned.learned import LearnedAttack
from leakscope.audit.campaign import UPDATE
from leakscope.audit.cell import Cell, Role
from leakscope.audit.images import load_images, pieces
from leakscope.audit.record import FAILED, RECORD, REFUSED, Record, Target, read_record
from leakscope.audit.run import Case, invert
from leakscope.audit.store import ensure_writable, write_failure, write_plain
from leakscope.capture import load_update
from leakscope.client.build import client_from
from leakscope.client.registry import defence_from
from leakscope.errors import BadInput, NotApplicable
from leakscope.models import VisionModel, load_model
from leakscope.random import fork
from leakscope.types import Attack, Batch, Callback, InputSpec, Knows, Status, ThreatModel

__all__ = ["Busy", "blank_record", "ended", "run_cell"]

log = logging.getLogger(__name__)

_LOCK: Final = ".lock"


class Busy(Exception):
    """Another process is running this cell."""


def ended(folder: Path) -> Record | None:
    """The record of the cell in ``folder`` if it has ended; one that was broken off by hand has not."""
    if not (folder / RECORD).exists():
        return None
    record = read_record(folder)
    return None if record.status == Status.INTERRUPTED else record


def run_cell(cell: Cell, folder: Path, *, base: Path, every: float = 5.0, callback: Callback | None = None) -> Record:
    """Run ``cell`` into ``folder``, or return what is there; files that it names are looked up from ``base``.

    A refusal and a failure are records, too. Raises :class:`Busy` if another process has the cell in hand.
    """
    ensure_writable(folder)
    with _locked(folder):
        if (record := ended(folder)) is not None:
            return record
        begun = blank_record(cell, FAILED, "The cell has not ended.")
        try:
            case = _case(cell, base)
            begun = case.begin(run="", threat=case.threat)
            if cell.role is Role.IDENTIFIABILITY:
                return write_plain(folder, _analysed(case, begun))
            if cell.role is Role.COST:
                return write_plain(folder, _priced(case, begun))
            return invert(case, folder, every=every, callback=callback).record
        except NotApplicable as refusal:
            return write_plain(folder, replace(begun, status=REFUSED, message=str(refusal)))
        except Exception as error:  # whatever it was, it is this cell's result, and the campaign goes on
            log.warning("The cell %s failed: %s", cell.title, error)
            return write_failure(folder, begun, error)


def blank_record(cell: Cell, status: str, message: str) -> Record:
    """A record of a cell that was not run: nothing is known but what the cell itself says."""
    return Record(
        run="",
        status=status,
        message=message,
        target=Target(name=str(cell.model["name"]), fingerprint="", parameters=0, shape=(0, 0, 0), num_classes=0),
        client=cell.client,
        threat=cell.attacker,
        knows=cell.knows,
        attack=cell.attack,
        settings=cell.options,
        seed=cell.seed,
        stream=_stream(cell),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={},
        cell=cell.key,
        role=str(cell.role),
        defences=cell.defences,
    )


def _stream(cell: Cell) -> str:
    return f"batch/{cell.batch}"


def _case(cell: Cell, base: Path) -> Case:
    # Read together once and cut, so that a label by counting is the same in every batch size.
    model = _model(json.dumps(dict(cell.model), sort_keys=True), str(base))
    knows = frozenset(Knows(name) for name in cell.knows)
    batches = pieces(_images(cell.images, model.input, base), cell.images.get("batch_size"))
    return Case(
        model=model,
        batch=batches[cell.batch],
        client=client_from({key: value for key, value in cell.client.items() if key != UPDATE}),
        threat=ThreatModel(name=cell.attacker or str(cell.role), knows=knows),
        attack_name=cell.attack,
        attack=_attack(cell),
        seed=cell.seed,
        stream=_stream(cell),
        defences=tuple(defence_from(table) for table in cell.defences),
        public=_images(cell.public, model.input, base) if cell.public else None,
        others=_others(batches, cell.batch),
        rounds=cell.rounds,
        update=load_update(base / cell.client[UPDATE]) if UPDATE in cell.client else None,
        control=cell.role is Role.CONTROL,
        cell=cell.key,
        role=str(cell.role),
    )


def _attack(cell: Cell) -> Attack:
    if cell.role in (Role.IDENTIFIABILITY, Role.COST):
        return _no_attack
    made = configured(cell.attack, cell.options)
    if cell.seconds is not None and isinstance(made, Optimisation):
        made = replace(made, stop=replace(made.stop, seconds=min(cell.seconds, made.stop.seconds or cell.seconds)))
    if cell.seconds is not None and isinstance(made, LearnedAttack):
        made = replace(made, seconds=min(cell.seconds, made.seconds or cell.seconds))
    return made


def _no_attack(*_: object, **__: object) -> Any:
    raise NotApplicable("This cell is an analysis, not an attack.")


@lru_cache(maxsize=2)
def _model(table: str, base: str) -> VisionModel:
    """Cells on the same model follow one another: it is loaded once."""
    given: dict[str, Any] = json.loads(table)
    name = str(given.pop("name"))
    file, _, factory = name.rpartition(":")
    if factory and file.endswith(".py"):
        name = f"{Path(base) / file}:{factory}"
    weights = given.pop("weights", None)
    return load_model(name, weights=None if weights is None else Path(base) / weights, **given)


def _images(table: Mapping[str, Any], spec: InputSpec, base: Path) -> Batch:
    labels = table.get("labels")
    if "labels_file" in table:
        if labels is not None:
            raise BadInput("An images table has labels or labels_file, not both.")
        labels = Path(table["labels_file"])
    return load_images(table["from"], spec, labels, base=base).batch


def _others(batches: list[Batch], index: int) -> Batch | None:
    """The images of the other batches, for defences that hide one batch among more."""
    rest = [batch for i, batch in enumerate(batches) if i != index]
    if not rest:
        return None
    return Batch(
        images=torch.cat([batch.images for batch in rest]),
        labels=torch.cat([batch.labels for batch in rest]),
        names=tuple(name for batch in rest for name in batch.names),
    )


def _analysed(case: Case, begun: Record) -> Record:
    from leakscope.audit.identifiability import analyse

    generator = fork(torch.Generator().manual_seed(case.seed), f"{case.stream}/identifiability")
    began = datetime.now(UTC)
    found = analyse(case.model, case.batch, protocol=case.client, defences=case.defences, generator=generator)
    seconds = (datetime.now(UTC) - began).total_seconds()
    return replace(
        begun, status=Status.FINISHED.value, message=str(found.get("summary", "")), evidence=found, seconds=seconds
    )


def _priced(case: Case, begun: Record) -> Record:
    """Accuracy and bytes, on a small network: what a defence takes from training is much the same for any."""
    from leakscope.audit.utility import small_network, utility

    generator = fork(torch.Generator().manual_seed(case.seed), "cost")
    try:
        cost = utility(small_network(), case.defences, generator=generator)
    except BadInput as error:
        raise NotApplicable(
            f"The small network that costs are measured on cannot take this defence: {error}"
        ) from error
    evidence: dict[str, object] = {"cost": {"accuracy_lost": -cost.change, "bytes": cost.bytes_ratio}}
    if cost.epsilon is not None:
        evidence["epsilon"] = cost.epsilon
    message = f"Accuracy {cost.accuracy:.1%} with the defence, {cost.plain_accuracy:.1%} without."
    return replace(begun, status=Status.FINISHED.value, message=message, evidence=evidence)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """This cell is ours until the block ends, or the process does."""
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(folder.name) from error
        yield
