"""Pictures inside the report: read from the campaign's folder, made small, and written into the page itself.

This is the only place of the report that opens a picture, and so the only one that has to withhold any.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image

from leakscope.audit.cell import CELLS
from leakscope.audit.findings import Level
from leakscope.audit.record import Picture
from leakscope.report.load import Audit
from leakscope.report.redact import shows_reconstruction

__all__ = ["Album", "Shot", "picture_path"]

_PIXELATED_BELOW: Final = 100
"""Pictures smaller than this are enlarged without smoothing: what one sees is what the attack brought back."""
_MOST_PIXELS: Final = 50_000_000
_SMALL: Final = 128
"""Sides up to which a picture is kept as it is; larger ones are compressed."""
_JPEG_QUALITY: Final = 88
_LEAST: Final = 1500
"""Bytes: with fewer left, hardly any picture fits, and none is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A picture for the page: its ``src`` as a data URI, or why there is none."""

    alt: str
    src: str = ""
    missing: str = ""
    width: int = 0
    height: int = 0

    @property
    def pixelated(self) -> bool:
        return 0 < max(self.width, self.height) < _PIXELATED_BELOW


class Album:
    """Takes pictures of an audit until ``limit`` bytes are used up; the ones asked for first are the ones that fit."""

    def __init__(self, audit: Audit, *, limit: int) -> None:
        self._audit = audit
        self._left = limit
        self._levels = audit.levels()
        self.left_out = 0

    def original(self, key: str, picture: Picture, *, side: int) -> Shot:
        alt = f"original of {picture.name}"
        if self._audit.redacted:
            return Shot(alt=alt, missing="original withheld")
        return self._shot(key, picture.original, alt, side)

    def reconstruction(self, key: str, picture: Picture, *, side: int, level: Level | None = None) -> Shot:
        """What the cell brought back. A redacted report looks at ``level`` and at the cell's own verdict."""
        alt = f"reconstruction of {picture.name}"
        cell = self._audit.cells.get(key)
        if self._audit.redacted:
            verdicts = [one for one in (level, self._levels.get(key)) if one is not None]
            role = "" if cell is None else str(cell.role)
            if not all(shows_reconstruction(role, one) for one in verdicts or [None]):
                return Shot(alt=alt, missing="reconstruction withheld")
        return self._shot(key, picture.reconstruction, alt, side)

    def _shot(self, key: str, name: str, alt: str, side: int) -> Shot:
        path = picture_path(self._audit.folder, self._audit.folders.get(key, key), name)
        if path is None:
            return Shot(alt=alt, missing="no picture")
        if self._left < _LEAST:
            self.left_out += 1
            return Shot(alt=alt, missing="left out to keep this file small")
        try:
            mime, content, size = _encode(path, side)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return Shot(alt=alt, missing="picture cannot be read")
        text = base64.b64encode(content).decode("ascii")
        if len(text) > self._left:
            self.left_out += 1
            return Shot(alt=alt, missing="left out to keep this file small")
        self._left -= len(text)
        return Shot(alt=alt, src=f"data:{mime};base64,{text}", width=size[0], height=size[1])


def picture_path(folder: Path, key: str, name: str) -> Path | None:
    """The file of a record's picture, or ``None`` where the name or a link leads out of the cell's own folder.

    A record is a file that anyone may have edited.
    """
    if Path(name).name != name or not name.endswith(".png") or Path(key).name != key:
        return None
    place = folder / CELLS / key
    try:
        path = (place / name).resolve(strict=True)
        home = folder.resolve(strict=True) / CELLS / key
    except (OSError, RuntimeError, ValueError):
        return None
    return path if path.parent == home and path.is_file() else None


def _encode(path: Path, side: int) -> tuple[str, bytes, tuple[int, int]]:
    """The picture at most ``side`` wide and high, written anew: nothing that was hidden in the file comes along."""
    with Image.open(path, formats=("PNG",)) as opened:
        if opened.width * opened.height > _MOST_PIXELS:
            raise ValueError("too large")
        picture = opened.convert("L" if opened.mode in ("1", "L", "I;16") else "RGB")
    if max(picture.size) <= min(side, _SMALL):
        # Small ones to the last bit: the pixels are the result.
        return "image/png", _saved(picture, "PNG"), picture.size
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return "image/jpeg", _saved(picture, "JPEG"), picture.size


def _saved(picture: Image.Image, form: str) -> bytes:
    picture.info.clear()
    buffer = io.BytesIO()
    picture.save(buffer, format=form, quality=_JPEG_QUALITY)
    return buffer.getvalue()
