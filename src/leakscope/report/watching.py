"""Campaigns below a folder, and how far each is: what ``leakscope serve`` shows. Nothing is ever written."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from leakscope.audit.cell import CELLS, MANIFEST, Cell, Manifest, read_manifest
from leakscope.audit.findings import FINDINGS
from leakscope.audit.findings_file import read_findings
from leakscope.audit.record import RECORD, read_record
from leakscope.errors import BadInput
from leakscope.report.load import PENDING, UNREADABLE

__all__ = ["PROGRESS", "Campaign", "Campaigns", "contained", "find_campaigns"]

PROGRESS: Final = "progress.json"
_DEEPEST: Final = 4
_MOST: Final = 500
_SILENT_AFTER: Final = 60.0
"""Seconds without a sign of life after which a campaign that is not done counts as stopped."""


def find_campaigns(root: Path) -> Iterator[Path]:
    """Folders with a manifest, at most four levels below ``root``; links are not followed."""
    found = 0
    for place, folders, files in os.walk(root, followlinks=False):
        here = Path(place)
        depth = len(here.relative_to(root).parts)
        folders[:] = sorted(name for name in folders if depth < _DEEPEST and not name.startswith("."))
        if MANIFEST in files and found < _MOST and contained(here / MANIFEST, here):
            found += 1
            folders[:] = []
            yield here


def contained(path: Path, folder: Path) -> bool:
    """Whether ``path`` is a real file in ``folder`` or below it, and no link leads out of it."""
    try:
        return path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):
        return False


class Campaign:
    """One campaign, looked at again and again: a record that has not changed is not read twice."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        """Where it lies, below the folder that is served."""
        self._lock = threading.Lock()
        self._manifest: tuple[tuple[int, int], Manifest, list[str]] | None = None
        self._seen: dict[str, tuple[tuple[int, int], str]] = {}

    @property
    def id(self) -> str:
        """What stands for the campaign in an address: no part of a path ever comes from outside."""
        return hashlib.blake2b(self.name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()

    def manifest(self) -> Manifest:
        """The manifest as it is now; raises :class:`BadInput` where it cannot be read."""
        return self._read()[0]

    def cells(self) -> list[tuple[Cell, str]]:
        """Every cell and its key, in planned order."""
        manifest, keys = self._read()
        return list(zip(manifest.cells, keys, strict=True))

    def escapes(self) -> bool:
        """Whether a link leads from the campaign's files to somewhere else; such a campaign is not opened."""
        paths = [self.folder / MANIFEST, self.folder / FINDINGS, self.folder / PROGRESS]
        paths += [self.folder / CELLS / key / RECORD for key in self._read()[1]]
        return any(os.path.lexists(path) and not contained(path, self.folder) for path in paths)

    def statuses(self) -> dict[str, str]:
        """The status of every cell, by key."""
        _, keys = self._read()
        with self._lock:
            return {key: self._status(key) for key in keys}

    def progress(self) -> dict[str, Any]:
        """How far the campaign is, as plain data for a page that follows it."""
        statuses = self.statuses()
        counts = Counter(statuses.values())
        done = len(statuses) - counts[PENDING]
        told, age = self._told()
        running = done < len(statuses) and age is not None and age < _SILENT_AFTER
        state = "done" if done == len(statuses) else ("running" if running else "stopped")
        return {
            "id": self.id,
            "folder": self.name,
            "name": self.manifest().name,
            "state": state,
            "done": done,
            "total": len(statuses),
            "counts": dict(counts.most_common()),
            "seconds_left": told.get("seconds_left") if running else None,
            "running": told.get("running", []) if running else [],
            "level": self._level(),
            "statuses": statuses,
        }

    def _read(self) -> tuple[Manifest, list[str]]:
        path = self.folder / MANIFEST
        with self._lock:
            mark = _mark(path)
            if mark is None:
                raise BadInput(f"'{self.folder}' holds no campaign any more.")
            if self._manifest is None or self._manifest[0] != mark:
                manifest = read_manifest(self.folder)
                self._manifest = (mark, manifest, [cell.key for cell in manifest.cells])
            return self._manifest[1], self._manifest[2]

    def _status(self, key: str) -> str:
        place = self.folder / CELLS / key
        mark = _mark(place / RECORD)
        if mark is None:
            return PENDING
        if not contained(place / RECORD, self.folder):
            return UNREADABLE
        if key not in self._seen or self._seen[key][0] != mark:
            try:
                status = read_record(place).status
            except BadInput:
                status = UNREADABLE
            self._seen[key] = (mark, status)
        return self._seen[key][1]

    def _told(self) -> tuple[dict[str, Any], float | None]:
        """What the runner wrote last, and how many seconds ago."""
        path = self.folder / PROGRESS
        mark = _mark(path)
        if mark is None or not contained(path, self.folder):
            return {}, None
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}, None
        return cast("dict[str, Any]", told) if isinstance(told, dict) else {}, time.time() - mark[0] / 1e9

    def _level(self) -> str | None:
        if not contained(self.folder / FINDINGS, self.folder):
            return None
        try:
            return str(read_findings(self.folder).level)
        except BadInput:
            return None


class Campaigns:
    """All campaigns below ``root``; each keeps what it has read."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[str, Campaign] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Campaign]:
        """The campaigns there are now."""
        with self._lock:
            found: dict[str, Campaign] = {}
            for folder in find_campaigns(self.root):
                one = Campaign(folder, str(folder.relative_to(self.root)))
                found[one.id] = self._known.get(one.id, one)
            self._known = found
            return list(found.values())

    def get(self, identity: str) -> Campaign | None:
        """The campaign with this id, looked for anew if it is not known yet."""
        return self._known.get(identity) or next((one for one in self.all() if one.id == identity), None)


def _mark(path: Path) -> tuple[int, int] | None:
    """What changes when a file does, or ``None`` where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
