"""A cell as the page shows it: how it ended, its settings, scores, curve and pictures."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Final, cast

from markupsafe import Markup

from leakscope.audit.cell import Cell
from leakscope.audit.findings import Level
from leakscope.audit.record import FAILED, REFUSED, SKIPPED, Record
from leakscope.report import figures
from leakscope.report.album import Album, Shot
from leakscope.report.caption import number, run_line
from leakscope.report.load import PENDING, UNREADABLE, Audit

__all__ = ["CellLine", "CellView", "cell_line", "cell_view", "kind_of"]

_KINDS: Final = {
    FAILED: "bad",
    UNREADABLE: "bad",
    "diverged": "bad",
    REFUSED: "quiet",
    SKIPPED: "quiet",
    PENDING: "open",
}
_LONGEST: Final = 6000
_MOST_ROWS: Final = 64
_MOST_SHOTS: Final = 16


def kind_of(status: str) -> str:
    """Sorts a status: ``fine``, ``quiet`` (not run on purpose), ``open`` (not run yet) or ``bad``."""
    return _KINDS.get(status, "fine")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellLine:
    """One cell in a line. ``kind`` sorts its status: fine, quiet (on purpose), open, or bad."""

    key: str
    cell: Cell
    status: str
    kind: str
    level: Level | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """Everything about one cell."""

    record: Record | None
    message: str
    run: str
    curve: Markup
    shots: list[tuple[str, Shot, Shot]]
    metrics: tuple[str, ...]
    rows: list[list[str]]
    facts: list[tuple[str, str]]
    settings: str
    error: str


def cell_line(audit: Audit, key: str, level: Level | None) -> CellLine:
    """One cell in short, with its verdict where it has one."""
    status = audit.status(key)
    return CellLine(key=key, cell=audit.cells[key], status=status, kind=kind_of(status), level=level)


def cell_view(audit: Audit, key: str, album: Album, *, side: int = 96) -> CellView:
    """One cell in full, with pictures at most ``side`` pixels wide."""
    cell, record, status = audit.cells[key], audit.records.get(key), audit.status(key)
    pictures = record.pictures[:_MOST_SHOTS] if record is not None else ()
    return CellView(
        record=record,
        message=audit.unreadable.get(key, "") if record is None else record.message,
        run="" if record is None or status in _KINDS else run_line(record),
        curve=Markup("") if record is None else figures.loss_curve(record.trace, record.restart),
        shots=[
            (
                picture.name,
                album.original(key, picture, side=side),
                album.reconstruction(key, picture, side=side),
            )
            for picture in pictures
        ],
        metrics=() if record is None else _metrics_of(record),
        rows=[] if record is None else _score_rows(record, audit.redacted),
        facts=_cell_facts(cell, record),
        settings=_settings(cell, record),
        error="" if record is None or record.error is None else _cut(record.error),
    )


def _metrics_of(record: Record) -> tuple[str, ...]:
    better = cast("dict[str, bool]", record.scores.get("higher_is_better", {}))
    names = cast("dict[str, object]", record.scores.get("metrics", {}))
    return tuple(f"{name} {'↑' if better[name] else '↓'}" if name in better else name for name in names)


def _score_rows(record: Record, redacted: bool) -> list[list[str]]:
    names = cast("dict[str, object]", record.scores.get("metrics", {}))
    columns = [record.metric(name) or [] for name in names]
    rows: list[list[str]] = []
    for index, picture in enumerate(record.pictures[:_MOST_ROWS]):
        right = picture.label == picture.recovered_label
        shown = f"{picture.label}" if right else f"{picture.label} ≠ {picture.recovered_label}"
        label = ("recovered" if right else "not recovered") if redacted else shown
        rows.append(
            [picture.name, label, *(number(column[index]) if index < len(column) else "" for column in columns)]
        )
    return rows


def _cell_facts(cell: Cell, record: Record | None) -> list[tuple[str, str]]:
    facts = [
        ("target", cell.target),
        ("attacker", f"{cell.attacker} ({', '.join(cell.knows) or 'knows nothing more'})" if cell.attacker else ""),
        ("seed", str(cell.seed)),
        ("batch", str(cell.batch)),
    ]
    if record is not None:
        energies = ", ".join(number(value) for value in record.energies[:12])
        facts += [
            ("random stream", record.stream),
            ("ended", record.created),
            ("steps", str(record.steps) if record.steps else ""),
            ("loss", "" if math.isnan(record.energy) else number(record.energy)),
            ("restarts", f"{energies} (kept: {record.restart})" if len(record.energies) > 1 else ""),
            ("versions", ", ".join(f"{name} {value}" for name, value in record.versions.items())),
            ("model", f"{record.target.name}, {record.target.parameters:,} parameters, {record.target.fingerprint}"),
            ("run", record.run),
        ]
    return [(name, value) for name, value in facts if value]


def _settings(cell: Cell, record: Record | None) -> str:
    shown: dict[str, object] = {
        "model": cell.model,
        "images": cell.images,
        "client": cell.client if record is None else record.client,
        "defences": cell.defences,
        "attack": {"type": cell.attack, **cell.options},
        "settings": {} if record is None else record.settings,
        "evidence": {} if record is None else record.evidence,
    }
    return _cut(
        json.dumps({key: value for key, value in shown.items() if value}, indent=2, ensure_ascii=False, default=dict)
    )


def _cut(text: str, most: int = _LONGEST) -> str:
    """The end of a traceback and the beginning of everything tell most."""
    return text if len(text) <= most else f"{text[: most // 2]}\n…\n{text[-most // 2 :]}"
