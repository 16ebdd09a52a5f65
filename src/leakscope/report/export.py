"""Findings for other programs: a table (CSV) and a document (JSON) whose schema is ``docs/report.schema.json``."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any, Final

from leakscope.audit.findings import Finding, ImageFinding
from leakscope.audit.record import plain
from leakscope.report.citations import papers_of
from leakscope.report.load import Audit
from leakscope.report.words import answer, question

__all__ = ["SCHEMA", "csv_text", "document", "json_text"]

SCHEMA: Final = 1
"""The version of the document's form; it grows when a reader would have to change."""
_COLUMNS: Final = (
    "campaign",
    "target",
    "model",
    "images",
    "client",
    "defence",
    "attacker",
    "finding_level",
    "image",
    "level",
    "reason",
    "attack",
    "seed",
    "cell",
    "index",
    "rank",
    "gallery",
    "p_value",
)


def csv_text(audit: Audit) -> str:
    """One row for every image of every finding; a finding without images has one row, with its verdict alone.

    Metrics follow the fixed columns as ``psnr`` and ``control_psnr``, in alphabetical order.
    """
    images = [image for finding in audit.findings.findings for image in finding.images]
    metrics = sorted({name for image in images for name in (*image.scores, *image.control)})
    target = io.StringIO(newline="")
    table = csv.writer(target)
    table.writerow([*_COLUMNS, *metrics, *(f"control_{name}" for name in metrics)])
    for finding in audit.findings.findings:
        for image in finding.images or (None,):
            table.writerow([_safe(value) for value in _row(audit, finding, image, metrics)])
    return target.getvalue()


def json_text(audit: Audit) -> str:
    """:func:`document` as strict JSON; what it has no number for is "inf", "-inf" or "nan"."""
    return json.dumps(document(audit), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document(audit: Audit) -> dict[str, Any]:
    """The whole report as plain data."""
    levels = audit.levels()
    metrics = {name for record in audit.records.values() for name in record.scores.get("metrics", {})}
    content: dict[str, object] = {
        "kind": "leakscope report",
        "schema": SCHEMA,
        "campaign": audit.manifest.name,
        "created": audit.manifest.created,
        "question": question(audit),
        "answer": answer(audit.findings),
        "level": audit.findings.level,
        "redacted": audit.redacted,
        "done": audit.findings.done,
        "total": audit.findings.total,
        "policy": audit.findings.policy,
        "findings": audit.findings.findings,
        "cells": [
            {
                "key": key,
                "role": cell.role,
                "target": cell.target,
                "attacker": cell.attacker,
                "attack": cell.attack,
                "options": cell.options,
                "seed": cell.seed,
                "batch": cell.batch,
                "status": audit.status(key),
                "level": levels.get(key),
                "message": record.message if (record := audit.records.get(key)) else audit.unreadable.get(key, ""),
                "steps": record.steps if record else 0,
                "seconds": record.seconds if record else 0.0,
                "run": record.run if record else "",
                "versions": record.versions if record else {},
            }
            for key, cell in audit.cells.items()
        ],
        "citations": [{"key": p.key, "bibtex": p.bibtex} for p in papers_of(audit.cells.values(), metrics)],
    }
    return plain(content)  # pyright: ignore[reportReturnType]


def _row(audit: Audit, finding: Finding, image: ImageFinding | None, metrics: list[str]) -> list[object]:
    common: list[object] = [
        audit.manifest.name,
        finding.target,
        finding.model,
        finding.images_name,
        finding.client,
        finding.defence,
        finding.attacker,
        str(finding.level),
    ]
    if image is None:
        return [*common, "", str(finding.level), finding.summary, *[""] * (len(_COLUMNS) - 11 + 2 * len(metrics))]
    return [
        *common,
        image.name,
        str(image.level),
        image.reason,
        image.attack,
        image.seed,
        image.cell,
        image.index,
        image.rank,
        image.gallery or None,
        image.p_value,
        *(image.scores.get(name) for name in metrics),
        *(image.control.get(name) for name in metrics),
    ]


def _safe(value: object) -> object:
    """A text that a spreadsheet would take for a formula is marked as text; a number stays a number."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "" if value is None else value
