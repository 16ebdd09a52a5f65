"""Drawing a contact sheet: one section per record, each a grid of original-and-reconstruction pairs with captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from leakscope.audit.record import Record
from leakscope.errors import BadInput
from leakscope.report.caption import client_line, picture_caption, run_line, title

__all__ = ["draw_sheet"]

_TILE: Final = 192  # the least side of a picture on the sheet
_LARGEST: Final = 448  # the most, above which it is shrunk
_NARROWEST: Final = 480  # so that a title fits above a single small pair
_MARGIN, _GAP, _BETWEEN = 28, 8, 28
_INK, _FAINT, _RULE, _PAPER = "#20242b", "#6a7280", "#dfe2e7", "#ffffff"


@dataclass(frozen=True, slots=True)
class _Text:
    """A line of text in one size, weight and colour."""

    text: str
    size: int = 13
    bold: bool = False
    colour: str = _INK

    @property
    def font(self) -> ImageFont.FreeTypeFont:
        return _font(self.size, self.bold)

    @property
    def height(self) -> int:
        return round(self.size * 1.45)

    def wrapped(self, width: int) -> list[_Text]:
        """The same in as many lines as ``width`` pixels make necessary; a word too long for a line is cut."""
        lines: list[str] = []
        for word in self.text.split(" "):
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.font.getlength(longer) <= width:
                lines[-1] = longer
                continue
            while self.font.getlength(word) > width and len(word) > 2:
                word = word[:-2] + "…"
            lines.append(word)
        return [replace(self, text=line) for line in lines]


def draw_sheet(records: Sequence[tuple[Path, Record]]) -> Image.Image:
    """The sheet for these folders and their records, one section below the other."""
    sections = [_section(folder, record) for folder, record in records]
    width = max(section.width for section in sections)
    height = sum(section.height for section in sections) + _BETWEEN * (len(sections) - 1)
    sheet = Image.new("RGB", (width + 2 * _MARGIN, height + 2 * _MARGIN), _PAPER)
    draw = ImageDraw.Draw(sheet)
    top = _MARGIN
    for index, section in enumerate(sections):
        if index:
            draw.line((_MARGIN, top + _BETWEEN // 2, _MARGIN + width, top + _BETWEEN // 2), fill=_RULE, width=1)
            top += _BETWEEN
        sheet.paste(section, (_MARGIN, top))
        top += section.height
    return sheet


def _section(folder: Path, record: Record) -> Image.Image:
    """One record: its headings over a grid of its pairs."""
    pairs = [_pair(folder, record, index) for index in range(len(record.pictures))]
    count = len(pairs)
    columns = 1 if count == 1 else 2 if count <= 8 else 3 if count <= 24 else 4
    across, down = (max(pair.width for pair in pairs) + _BETWEEN, max(pair.height for pair in pairs) + 16)
    width = max(_NARROWEST, columns * across - _BETWEEN)
    headings = _Text(title(record), size=19, bold=True).wrapped(width)
    for line in (client_line(record), run_line(record)):
        headings += _Text(line, colour=_FAINT).wrapped(width)
    above = sum(line.height for line in headings) + 12
    rows = -(-count // columns)
    section = Image.new("RGB", (width, above + rows * down - 16), _PAPER)
    _write(ImageDraw.Draw(section), headings, 0, 0)
    for index, pair in enumerate(pairs):
        row, column = divmod(index, columns)
        section.paste(pair, (column * across, above + row * down))
    return section


def _pair(folder: Path, record: Record, index: int) -> Image.Image:
    """An original beside its reconstruction, with the caption below."""
    picture = record.pictures[index]
    original, rebuilt = _tile(folder / picture.original), _tile(folder / picture.reconstruction)
    width = original.width + _GAP + rebuilt.width
    name, scores = picture_caption(record, index)
    caption = [*_Text(name, bold=True).wrapped(width), *_Text(scores).wrapped(width)]
    head = _Text("", size=12).height
    below = head + max(original.height, rebuilt.height) + 6
    pair = Image.new("RGB", (width, below + sum(line.height for line in caption)), _PAPER)
    draw = ImageDraw.Draw(pair)
    for left, word, tile in ((0, "original", original), (original.width + _GAP, "reconstruction", rebuilt)):
        _write(draw, [_Text(word, size=12, colour=_FAINT)], left, 0)
        pair.paste(tile, (left, head))
    _write(draw, caption, 0, below)
    return pair


def _write(draw: ImageDraw.ImageDraw, lines: Sequence[_Text], left: int, top: int) -> None:
    for line in lines:
        draw.text((left, top), line.text, font=line.font, fill=line.colour)
        top += line.height


def _tile(path: Path) -> Image.Image:
    """The stored picture, enlarged by a whole factor if small, so that its pixels stay what they are."""
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, SyntaxError) as error:
        raise BadInput(f"The record's picture '{path}' cannot be read: {error}") from error
    if max(picture.size) > _LARGEST:
        picture.thumbnail((_LARGEST, _LARGEST), Image.Resampling.LANCZOS)
        return picture
    factor = max(1, -(-_TILE // max(picture.size)))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


@cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib and has the field's letters and arrows."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / name), size)
