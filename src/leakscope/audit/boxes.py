"""Boxes from label files: YOLO's ``.txt`` beside each image, or one JSON file for all of them.

Whatever the file, boxes come out as class, centre and size in shares of the *picture*, before it is letterboxed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from leakscope.errors import BadInput

__all__ = ["BoxFile", "boxes_beside", "read_box_file", "read_text_boxes"]

BoxFile = Mapping[str, Tensor]
"""Boxes (n, 5) by the name of the image's file (or of the bundled photograph)."""


def boxes_beside(image: Path) -> Path | None:
    """The ``.txt`` of an image: beside it, or in ``labels`` where the image is in ``images``, as YOLO lays them out."""
    beside = image.with_suffix(".txt")
    apart = image.parent.parent / "labels" / beside.name if image.parent.name == "images" else beside
    return next((path for path in (beside, apart) if path.is_file()), None)


def read_text_boxes(path: Path) -> Tensor:
    """One box a line: class, centre x, centre y, width, height; an empty file is an image without objects."""
    rows: list[list[float]] = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        parts = line.split()
        if not parts:
            continue
        try:
            rows.append(_row([float(part) for part in parts]))
        except ValueError as error:
            raise BadInput(
                f"'{path}', line {number}: '{line.strip()[:60]}' is no box. A line holds five numbers: class, centre "
                "x, centre y, width and height, the last four as shares of the image."
            ) from error
    return _tensor(rows)


def read_box_file(path: Path) -> BoxFile:
    """A JSON file: COCO's (``images``, ``annotations``, ``categories``), or ``{"name.jpg": [[class, x, y, w, h], …]}``.

    In the plain form the numbers are shares of the image, as in ``.txt`` files. COCO's boxes are corner and size in
    pixels, and its categories are numbered 0, 1, 2, … in the order of their ids, as detectors do.
    """
    try:
        content = json.loads(_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"'{path}' is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadInput(f"'{path}' holds a {type(content).__name__}; boxes are a mapping from image names, or COCO's.")
    entries = cast("dict[str, Any]", content)
    try:
        if "annotations" in entries and "images" in entries:
            return _coco(entries)
        return {name: _tensor([_row(box) for box in boxes]) for name, boxes in entries.items()}
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise BadInput(
            f"'{path}' does not hold boxes: {type(error).__name__} {error}. Accepted: COCO's format, or "
            '{"name.jpg": [[class, centre x, centre y, width, height], …]} in shares of the image.'
        ) from error


def _coco(content: Mapping[str, Any]) -> BoxFile:
    images = {image["id"]: image for image in content["images"]}
    kinds = sorted(category["id"] for category in content.get("categories", []))
    classes = {kind: index for index, kind in enumerate(kinds)}
    rows: dict[Any, list[list[float]]] = {key: [] for key in images}
    for note in content["annotations"]:
        image = images[note["image_id"]]
        left, top, width, height = note["bbox"]
        across, down = float(image["width"]), float(image["height"])
        kind = classes[note["category_id"]] if classes else note["category_id"]
        centre = [(left + width / 2) / across, (top + height / 2) / down]
        rows[note["image_id"]].append(_row([kind, *centre, width / across, height / down]))
    return {Path(image["file_name"]).name: _tensor(rows[key]) for key, image in images.items()}


def _row(numbers: Sequence[float]) -> list[float]:
    row = [float(number) for number in numbers]
    if len(row) != 5 or not all(math.isfinite(number) for number in row):
        raise ValueError(f"{numbers} are not five finite numbers")
    return row


def _tensor(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows).reshape(-1, 5)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The label file '{path}' cannot be read: {error}") from error
