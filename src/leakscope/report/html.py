"""The report: one HTML file that needs nothing else.

Everything that comes from a campaign is data to the template, and escaped there. The page carries a content security
policy that allows its own script by digest and nothing from anywhere else, so even a slip would run nothing.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from leakscope.audit.findings import Level
from leakscope.errors import BadInput
from leakscope.report.album import Album
from leakscope.report.cell_view import CellLine, CellView, cell_line, cell_view
from leakscope.report.citations import papers_of
from leakscope.report.cuts import cut_curves
from leakscope.report.limits import limits
from leakscope.report.load import Audit
from leakscope.report.toml_text import toml_text
from leakscope.report.tradeoff import tradeoffs
from leakscope.report.view import finding_views, ladder, worst_pairs
from leakscope.report.words import MEANING, advice, answer, headline, question, setting, tally

__all__ = ["LARGEST", "asset", "content_policy", "environment", "file_name", "render", "write_file"]

LARGEST: Final = 15_000_000
"""A report is smaller than this: it must open on a phone and go through a mail server."""
_PICTURES: Final = 8_000_000
_MOST_CELLS: Final = 600
"""Cells shown whole; of the others, a line each."""
_INVISIBLE: Final = dict.fromkeys(
    [
        *range(9),
        11,
        12,
        *range(14, 32),
        *range(127, 160),
        0x200E,
        0x200F,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    ],
    "\ufffd",
)
_TEMPLATES: Final = Path(__file__).parent / "templates"


def render(audit: Audit) -> str:
    """The report on ``audit`` as HTML. Large campaigns lose small pictures first, then the least important cells."""
    text = ""
    for pictures, cells in ((_PICTURES, _MOST_CELLS), (_PICTURES // 2, _MOST_CELLS // 4), (1_000_000, 0)):
        text = _render(audit, pictures=pictures, cells=cells)
        if len(text.encode()) < LARGEST:
            return text
    raise BadInput(
        f"The report would have {len(text.encode()) / 1e6:.0f} MB even without most of its pictures; the limit is "
        f"{LARGEST / 1e6:.0f} MB. Split the campaign of {len(audit.cells)} cells, or use --csv and --json."
    )


def file_name(audit: Audit, suffix: str) -> str:
    """``report.html``; a redacted one has a name of its own, so that the two cannot be mixed up."""
    return f"report-redacted.{suffix}" if audit.redacted else f"report.{suffix}"


def write_file(path: Path, text: str) -> Path:
    """Write ``text`` in one move."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="")
        part.replace(path)
    except OSError as error:
        raise BadInput(f"Cannot write '{path}': {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return path


@cache
def environment() -> Environment:
    """Templates with everything escaped; a name that is not there is an error, not an empty place."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = cast("dict[str, Any]", made.globals)
    names.update(MEANING=MEANING, Level=Level, setting=setting, version=version("leakscope"))
    return made


def _visible(value: Any) -> Any:
    """Control characters that turn text around or hide it, as the mark of a character that cannot be shown."""
    return value.translate(_INVISIBLE) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def asset(name: str) -> Markup:
    """A style sheet or script of our own, as it is."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


def content_policy() -> str:
    """What the report's page may do: show pictures it holds, and run the one script whose digest this is."""
    digest = base64.b64encode(hashlib.sha256(str(asset("report.js")).encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )


def _render(audit: Audit, *, pictures: int, cells: int) -> str:
    album = Album(audit, limit=pictures)
    pairs = worst_pairs(audit, album)
    attackers, targets = ladder(audit)
    context: dict[str, Any] = {
        "audit": audit,
        "manifest": audit.manifest,
        "findings": audit.findings,
        "question": question(audit),
        "headline": headline(audit.findings),
        "answer": answer(audit.findings),
        "tally": tally(audit.findings),
        "views": finding_views(audit),
        "pairs": pairs,
        "advice": advice(audit),
        "cuts": cut_curves(audit, album),
        "limits": limits(audit),
        "attackers": attackers,
        "targets": targets,
        "tradeoffs": tradeoffs(audit),
        "cells": _cells(audit, album, most=cells),
        "statuses": Counter(audit.status(key) for key in audit.cells).most_common(),
        "papers": papers_of(audit.cells.values(), _metrics(audit)),
        "campaign": toml_text(audit.manifest.campaign),
        "left_out": album.left_out,
        "made": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        "style": asset("report.css"),
        "script": asset("report.js"),
        "policy": content_policy(),
    }
    return environment().get_template("report.html.j2").render(context)


def _cells(audit: Audit, album: Album, *, most: int) -> list[tuple[CellLine, CellView | None]]:
    """Every cell in planned order, the ``most`` important in full: those behind a verdict, then those that ran."""
    levels = audit.levels()
    lines = [cell_line(audit, key, levels.get(key)) for key in audit.cells]
    behind = {image.cell for finding in audit.findings.findings for image in finding.images}
    ranked = sorted(lines, key=lambda line: (line.key not in behind, line.kind not in ("fine", "bad")))
    full = {line.key: cell_view(audit, line.key, album) for line in ranked[:most]}
    return [(line, full.get(line.key)) for line in lines]


def _metrics(audit: Audit) -> set[str]:
    return {name for record in audit.records.values() for name in record.scores.get("metrics", {})}
