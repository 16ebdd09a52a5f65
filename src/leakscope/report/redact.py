"""An audit that may be shared: without the private images, and without what names them.

What may leave the house is what an outsider could not use to learn about a person in a picture. So the data is
rewritten before anything is drawn, and what is made of it afterwards (HTML, CSV, JSON, PDF) can only show what is left:

- originals: never. Reconstructions: only where the verdict is "nothing found", and those of prior-only controls, which
  never saw the signal. Everything else, traces and unknowns included, is withheld: a person sees more in a picture than
  a metric does.
- names of images, which are often names of people or files, become "image 1", "image 2", …, in every sentence, too.
- labels, which may say what somebody suffers from, go. Whether a label was recovered stays.
- tracebacks, paths and digests go: a digest confirms a guess. Cells, whose keys are digests, are numbered.

The names that the campaign file gives to models, clients and image sets stay; they were written for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final, cast

from leakscope.audit.cell import Cell, Role
from leakscope.audit.findings import Evidence, Finding, Level
from leakscope.audit.record import FAILED, Picture, Record
from leakscope.report.load import Audit

__all__ = ["HIDDEN", "redact", "shows_reconstruction"]

HIDDEN: Final = "(redacted)"
_NO_LABEL: Final = -1
# Keys of a campaign's tables whose values name private files or labels.
_PRIVATE: Final = frozenset({"from", "sources", "labels", "labels_file", "weights", "public", "files"})


def shows_reconstruction(role: str, level: Level | None) -> bool:
    """Whether a redacted report may show what this cell brought back."""
    return role == Role.CONTROL or (role == Role.ATTACK and level is Level.NOTHING)


def redact(audit: Audit) -> Audit:
    """``audit`` without its secrets. Doing it twice changes nothing."""
    if audit.redacted:
        return audit
    keys = {key: f"c{number:04d}" for number, key in enumerate(audit.cells, start=1)}
    clean = _Cleaner(_aliases(audit), keys)
    return replace(
        audit,
        manifest=replace(
            audit.manifest, campaign=cast("dict[str, Any]", _without_private(audit.manifest.campaign)), cells=()
        ),
        cells={keys[key]: _cell(cell) for key, cell in audit.cells.items()},
        findings=replace(
            audit.findings, findings=tuple(_finding(finding, clean) for finding in audit.findings.findings)
        ),
        records={keys[key]: _record(record, clean) for key, record in audit.records.items()},
        unreadable={keys[key]: HIDDEN for key in audit.unreadable},
        folders={alias: key for key, alias in keys.items()},
        redacted=True,
    )


class _Cleaner:
    """Puts aliases in the place of names and keys."""

    def __init__(self, aliases: Mapping[str, str], keys: Mapping[str, str]) -> None:
        self._aliases = aliases
        self._keys = keys
        longest_first = sorted((name for name in aliases if len(name) > 1), key=len, reverse=True)
        names = "|".join(re.escape(name) for name in longest_first)
        self._pattern = re.compile(rf"(?<!\w)(?:{names})(?!\w)") if names else None

    def key(self, key: str) -> str:
        return self._keys.get(key, "")

    def name(self, name: str) -> str:
        return self._aliases.get(name, HIDDEN)

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(lambda found: self.name(found.group()), text)

    def data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.data(item) for key, item in cast("Mapping[str, Any]", value).items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in cast("list[Any]", value)]
        return value


def _aliases(audit: Audit) -> dict[str, str]:
    names = {image.name: None for finding in audit.findings.findings for image in finding.images}
    names |= {picture.name: None for record in audit.records.values() for picture in record.pictures}
    # By name, not by severity: the number must not tell which was worst.
    return {name: f"image {number}" for number, name in enumerate(sorted(names), start=1)}


def _cell(cell: Cell) -> Cell:
    return replace(
        cell,
        **{
            name: cast("dict[str, Any]", _without_private(getattr(cell, name)))
            for name in ("model", "images", "client", "options")
        },
        public={},
        files={},
    )


def _finding(finding: Finding, clean: _Cleaner) -> Finding:
    evidence = finding.evidence
    return replace(
        finding,
        summary=clean.text(finding.summary),
        images=tuple(
            replace(image, name=clean.name(image.name), reason=clean.text(image.reason), cell=clean.key(image.cell))
            for image in finding.images
        ),
        evidence=Evidence(
            attempts=tuple(
                replace(
                    attempt,
                    cell=clean.key(attempt.cell),
                    message=HIDDEN if attempt.status == FAILED else clean.text(attempt.message),
                )
                for attempt in evidence.attempts
            ),
            self_tests=tuple(
                replace(test, cell=clean.key(test.cell), message=clean.text(test.message))
                for test in evidence.self_tests
            ),
            identifiability=clean.data(evidence.identifiability),
            budget=clean.data(evidence.budget),
        ),
    )


def _record(record: Record, clean: _Cleaner) -> Record:
    scores = {key: clean.data(value) for key, value in record.scores.items() if key not in ("images", "assignment")}
    return replace(
        record,
        run="",
        cell="",
        target=replace(record.target, name=_no_folder(record.target.name)),
        message=HIDDEN if record.error else clean.text(record.message),
        error=None if record.error is None else f"{record.error.strip().splitlines()[-1].partition(':')[0]}: {HIDDEN}",
        settings=cast("dict[str, object]", clean.data(_without_private(record.settings))),
        evidence=cast("dict[str, object]", clean.data(_without_private(record.evidence))),
        scores=scores,
        pictures=tuple(_picture(picture, clean) for picture in record.pictures),
    )


def _picture(picture: Picture, clean: _Cleaner) -> Picture:
    """Labels go, but equal ones stay equal: whether it was recovered is a result."""
    right = picture.label == picture.recovered_label
    return replace(
        picture, name=clean.name(picture.name), label=_NO_LABEL, recovered_label=_NO_LABEL if right else _NO_LABEL - 1
    )


def _without_private(value: object) -> object:
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value).items()
        return {key: HIDDEN if key in _PRIVATE and item else _without_private(item) for key, item in entries}
    if isinstance(value, str):
        return _no_folder(value)
    if isinstance(value, list | tuple):
        return [_without_private(item) for item in cast("list[object]", value)]
    return value


def _no_folder(text: str) -> str:
    """``models.py:make`` of ``/home/somebody/models.py:make``."""
    return PurePath(text).name if text.startswith(("/", "~", "./", "../")) or ".py:" in text else text
