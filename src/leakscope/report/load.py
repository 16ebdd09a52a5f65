"""A campaign's folder, read whole: its plan, its records and its verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from leakscope.audit.cell import Cell, Manifest, Role, read_manifest
from leakscope.audit.findings import FINDINGS, Finding, Findings, Level, worst
from leakscope.audit.findings_file import read_findings
from leakscope.audit.record import Record
from leakscope.errors import BadInput

__all__ = ["PENDING", "UNREADABLE", "Audit", "load", "load_cell", "pairing", "read_records"]

PENDING: Final = "not run"
"""The status of a cell that has no record yet."""
UNREADABLE: Final = "unreadable"
"""The status of a cell whose record is damaged: never counted as safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a report is made of. ``unreadable`` holds the reason for every record that could not be read.

    ``redacted`` marks an audit that :func:`leakscope.report.redact.redact` has rewritten: no original, no image's name
    and no label is in it, and no picture that gives one away is taken from the folder.
    """

    folder: Path
    manifest: Manifest
    findings: Findings
    cells: Mapping[str, Cell]
    """The manifest's cells by key, in the order they were planned. Redacted cells have numbers for keys."""
    records: Mapping[str, Record] = field(default_factory=dict[str, Record])
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    redacted: bool = False
    folders: Mapping[str, str] = field(default_factory=dict[str, str])
    """The folder of each cell whose key is not its folder's name."""

    def status(self, key: str) -> str:
        """The status of a cell in a word."""
        if key in self.unreadable:
            return UNREADABLE
        record = self.records.get(key)
        return PENDING if record is None else record.status

    def cells_of(self, finding: Finding, role: Role = Role.ATTACK) -> dict[str, Cell]:
        """The cells of one role that belong to ``finding``, by key."""
        return {
            key: cell
            for key, cell in self.cells.items()
            if cell.role is role and cell.target == finding.target and cell.attacker == finding.attacker
        }

    def controls(self) -> dict[str, str]:
        """The key of the prior-only control of each attack's cell that has one."""
        known = {pairing(cell): key for key, cell in self.cells.items() if cell.role is Role.CONTROL}
        attacks = {key: pairing(cell) for key, cell in self.cells.items() if cell.role is Role.ATTACK}
        return {key: known[pair] for key, pair in attacks.items() if pair in known}

    def levels(self) -> dict[str, Level]:
        """The verdict on each cell that has one, by key; the worst where a cell serves several findings."""
        found: dict[str, Level] = {}
        for finding in self.findings.findings:
            for attempt in finding.evidence.attempts:
                if attempt.level is not None:
                    known = found.get(attempt.cell, attempt.level)
                    found[attempt.cell] = worst([known, attempt.level])
        return found


def load(folder: Path) -> Audit:
    """Read the campaign in ``folder``; raises :class:`BadInput` where there is none, or no verdicts."""
    manifest = read_manifest(folder)
    records, unreadable = read_records(folder, manifest)
    return Audit(
        folder=folder,
        manifest=manifest,
        findings=read_findings(folder),
        cells={cell.key: cell for cell in manifest.cells},
        records=records,
        unreadable=unreadable,
    )


def load_cell(folder: Path, key: str) -> Audit:
    """The campaign with the record of one cell alone, whether or not it has ended; the others stay unread."""
    manifest = read_manifest(folder)
    cells = {cell.key: cell for cell in manifest.cells}
    if key not in cells:
        raise BadInput(f"The campaign in '{folder}' has no cell {key}.")
    records, unreadable = read_records(folder, replace(manifest, cells=(cells[key],)))
    nothing = Findings(campaign=manifest.name, policy={}, done=0, total=len(cells), findings=())
    findings = read_findings(folder) if (folder / FINDINGS).exists() else nothing
    return Audit(
        folder=folder, manifest=manifest, findings=findings, cells=cells, records=records, unreadable=unreadable
    )


def read_records(folder: Path, manifest: Manifest) -> tuple[dict[str, Record], dict[str, str]]:
    """Every record there is, by its cell's key, and why the others could not be read."""
    records: dict[str, Record] = {}
    unreadable: dict[str, str] = {}
    for cell in manifest.cells:
        try:
            record = manifest.record(folder, cell)
        except BadInput as error:
            unreadable[cell.key] = str(error)
        else:
            if record is not None:
                records[cell.key] = record
    return records, unreadable


def pairing(cell: Cell) -> tuple[object, ...]:
    """What an attack and its control have in common."""
    options = tuple(sorted((name, repr(value)) for name, value in cell.options.items()))
    return (cell.target, cell.attacker, cell.attack, options, cell.seed, cell.batch)
