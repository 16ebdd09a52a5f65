"""Private images from files, folders or the bundled photographs, as a batch that fits a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from leakscope.audit.boxes import boxes_beside, read_box_file, read_text_boxes
from leakscope.audit.image_file import Item, read_image
from leakscope.errors import BadInput
from leakscope.functional.boxes import Letterbox, stack_boxes
from leakscope.models.text import as_names
from leakscope.testing.bundled import bundled_info, bundled_names
from leakscope.types import Batch, InputSpec

__all__ = ["SUFFIXES", "Labels", "Loaded", "count_images", "image_files", "load_images", "pieces"]

SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""The files of a folder that are taken for images."""

_BUNDLED: Final = "bundled:"

Labels = Sequence[int] | Path
"""Classes, one per image; or, for a detector, the file of its boxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A batch, and what was done to the files to make it: people should know what was really attacked."""

    batch: Batch
    notices: tuple[str, ...]


def count_images(sources: Sequence[str], base: Path = Path()) -> int:
    """How many images these sources hold, without reading them."""
    return sum(len(_find(source, base)) for source in sources)


def image_files(sources: Sequence[str], base: Path = Path()) -> list[Path]:
    """The files that these sources name, their boxes' included; bundled photographs have none."""
    images = [item.path for source in sources for item in _find(source, base) if item.path is not None]
    return images + [boxes for image in images if (boxes := boxes_beside(image)) is not None]


def pieces(batch: Batch, size: int | None) -> list[Batch]:
    """The batch in parts of ``size`` images, the last one perhaps smaller; all in one part if no size is given."""
    size = size or len(batch)
    return [
        Batch(
            images=batch.images[start : start + size],
            labels=batch.labels[start : start + size],
            names=batch.names[start : start + size],
        )
        for start in range(0, len(batch), size)
    ]


def load_images(
    sources: Sequence[str], spec: InputSpec, labels: Labels | None = None, *, base: Path = Path()
) -> Loaded:
    """The images of files, folders (sorted by name) and ``bundled:NAME,NAME``, at the model's size and channels.

    Paths are looked up from ``base``.

    Pictures are cropped around their centre to the model's shape and resized (Lanczos). Without ``labels``, a folder
    of folders gives the classes (the number a sub-folder is named by, else its place among them); bundled photographs
    have their own; anything else is counted 0, 1, 2, … Classes that come by counting wrap around the model's.

    For a detector pictures are letterboxed, and the labels are boxes: ``labels`` is a file of them, see
    :mod:`leakscope.audit.boxes`; without one, they come from ``.txt`` files beside the images.
    """
    items = [item for source in sources for item in _find(source, base)]
    if not items:
        raise BadInput("No images were given: name files, folders or bundled:NAME.")
    done: Counter[str] = Counter()
    read = [read_image(item, spec, done) for item in items]
    images = torch.stack([image for image, _ in read])
    names = tuple(item.name for item in items)
    notices = [f"{text}: {count} of {len(items)} images." for text, count in done.items()]
    if spec.boxes:
        boxes, told = _boxes(items, [frame for _, frame in read], labels, base)
        return Loaded(batch=Batch(images=images, labels=boxes, names=names), notices=(*notices, *told))
    if isinstance(labels, Path):
        raise BadInput(
            f"The label file '{labels}' holds boxes; this model learns from classes. Give labels such as 3,5."
        )
    if labels is not None:
        if len(labels) != len(items):
            raise BadInput(f"{len(labels)} labels were given for {len(items)} images; one per image is needed.")
        chosen = list(labels)
    else:
        counted = [item for item in items if item.label is None and item.path is not None]
        if counted:
            notices.append("No labels were given: the images are counted 0, 1, 2, … (--labels sets them).")
        chosen = [_label(item, index, spec.num_classes) for index, item in enumerate(items)]
    for item, label in zip(items, chosen, strict=True):
        if not 0 <= label < spec.num_classes:
            raise BadInput(
                f"Label {label} of '{item.name}' is out of range: the model has {spec.num_classes} classes, "
                f"0 to {spec.num_classes - 1}."
            )
    batch = Batch(images=images, labels=torch.tensor(chosen), names=names)
    return Loaded(batch=batch, notices=tuple(notices))


def _boxes(
    items: Sequence[Item], frames: Sequence[Letterbox], labels: Labels | None, base: Path
) -> tuple[Tensor, list[str]]:
    """(B, M, 5) in shares of the letterboxed images, and what people should know of where they come from."""
    notices: list[str] = []
    if isinstance(labels, Path):
        given = read_box_file(base / labels)
        keys = [item.name if item.path is None else item.path.name for item in items]
        if missing := [key for key in keys if key not in given]:
            raise BadInput(
                f"'{labels}' says nothing of {as_names(missing)}. An image without objects has an empty list."
            )
        found = [given[key] for key in keys]
    elif labels is not None:
        raise BadInput("A detector learns from boxes, not from classes of images: give a file of boxes.")
    else:
        files = [None if item.path is None else boxes_beside(item.path) for item in items]
        if not any(files):
            raise BadInput(
                "A detector learns from boxes, and there are none: give a JSON file of them, or put YOLO's .txt files "
                "beside the images."
            )
        if bare := files.count(None):
            notices.append(f"No .txt file, so taken to show no object: {bare} of {len(items)} images.")
        found = [torch.zeros(0, 5) if file is None else read_text_boxes(file) for file in files]
    return stack_boxes([frame.boxes(boxes) for frame, boxes in zip(frames, found, strict=True)]), notices


def _label(item: Item, index: int, classes: int) -> int:
    if item.label is not None:
        return item.label
    if item.path is None:
        return next(info.label for info in bundled_info() if info.name == item.name) % classes
    return index % classes


def _find(source: str, base: Path) -> list[Item]:
    if source.startswith(_BUNDLED):
        wanted = source.removeprefix(_BUNDLED)
        names = [name.strip() for name in wanted.split(",")] if wanted else list(bundled_names())
        return [Item(name=name) for name in names]
    path = base / source
    if path.is_dir():
        return _find_in_folder(path)
    if not path.is_file():
        raise BadInput(f"There is no image or folder '{source}'. Bundled photographs are written bundled:NAME,NAME.")
    return [Item(name=path.name, path=path)]


def _find_in_folder(folder: Path) -> list[Item]:
    if files := _image_files(folder):
        return [Item(name=file.name, path=file) for file in files]
    classes = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    classes = [entry for entry in classes if _image_files(entry)]
    if not classes:
        raise BadInput(f"The folder '{folder}' holds no images ({', '.join(sorted(SUFFIXES))}).")
    numbered = all(entry.name.isdecimal() for entry in classes)
    return [
        Item(name=f"{entry.name}/{file.name}", path=file, label=int(entry.name) if numbered else index)
        for index, entry in enumerate(classes)
        for file in _image_files(entry)
    ]


def _image_files(folder: Path) -> list[Path]:
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in entries if entry.suffix.lower() in SUFFIXES and entry.is_file())
