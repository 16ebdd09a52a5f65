"""A study's rows on disk: ``study.json``, from which its figure is drawn, and ``table.csv``."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from leakscope.audit.store import replacing

if TYPE_CHECKING:
    from leakscope.audit.study import Setup

__all__ = ["RESULT", "TABLE", "Row", "plain_row", "write_rows"]

RESULT: Final = "study.json"
TABLE: Final = "table.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came back at one point: each metric's mean over the images and its value at the most exposed one."""

    at: Mapping[str, str | float]
    status: str
    message: str
    metrics: Mapping[str, float]
    best: Mapping[str, float]
    extra: Mapping[str, str | float]
    folder: str


def write_rows(
    setup: Setup,
    rows: list[Row],
    out: Path,
    *,
    study: str,
    x: str,
    series: str | None,
    metric: str,
    ordered: bool = False,
) -> None:
    """``study.json``, from which the figure is drawn, and ``table.csv``."""
    content = {
        "schema": 1,
        "study": study,
        "x": x,
        "series": series,
        "metric": metric,
        "ordered": ordered,
        "model": setup.model.name,
        "attack": setup.attack,
        "options": dict(setup.options),
        "images": list(setup.batch.names),
        "seed": setup.seed,
        "rows": [plain_row(row) for row in rows],
    }
    with replacing(out / RESULT) as part:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    with replacing(out / TABLE) as part:
        part.write_text(_table(rows), encoding="utf-8")


def plain_row(row: Row) -> dict[str, Any]:
    """A row as JSON, which has no infinity."""
    return {
        "at": dict(row.at),
        "status": row.status,
        "message": row.message,
        "metrics": {name: _finite(value) for name, value in row.metrics.items()},
        "best": {name: _finite(value) for name, value in row.best.items()},
        "extra": {name: _finite(value) for name, value in row.extra.items()},
        "folder": row.folder,
    }


def _finite(value: str | float) -> float | str:
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def _table(rows: list[Row]) -> str:
    axes = list(dict.fromkeys(key for row in rows for key in row.at))
    metrics = list(dict.fromkeys(key for row in rows for key in row.metrics))
    extra = list(dict.fromkeys(key for row in rows for key in row.extra))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, "status", *metrics, *(f"best {name}" for name in metrics), *extra, "message"])
    for row in rows:
        numbers = [row.metrics.get(m, "") for m in metrics] + [row.best.get(m, "") for m in metrics]
        writer.writerow(
            [
                *(row.at.get(a, "") for a in axes),
                row.status,
                *numbers,
                *(row.extra.get(e, "") for e in extra),
                row.message,
            ]
        )
    return text.getvalue()
