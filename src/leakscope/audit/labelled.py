"""Images with labels to train on: a folder or a zip of class folders, or a detector's images with their boxes."""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Literal, final

import torch
from torch import Tensor

from leakscope.audit.image_file import Item, read_image
from leakscope.audit.images import SUFFIXES, load_images
from leakscope.errors import BadInput
from leakscope.random import fork
from leakscope.types import Batch, InputSpec

__all__ = ["Labelled", "load_drawn", "load_labelled"]

_LARGEST: Final = 2**26
"""Bytes that one file of a zip may unpack to."""
_HELD_OUT: Final = ("test", "val", "valid", "validation")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Images (N, C, H, W) in bytes, a quarter of the memory of floats, and their labels: (N,) or boxes (N, M, 5)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def rows(self, indices: Tensor) -> Labelled:
        return Labelled(images=self.images[indices], labels=self.labels[indices])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A file of the folder or zip: its path inside, and how to open it."""

    place: PurePosixPath
    open: Callable[[], BinaryIO]


def load_labelled(
    path: Path,
    spec: InputSpec,
    *,
    held_out: float = 0.1,
    limit: int | None = None,
    test_limit: int | None = None,
    labels_file: Path | None = None,
    generator: torch.Generator,
) -> tuple[Labelled, Labelled, tuple[str, ...]]:
    """What to train on, what to test on, and the names of the classes.

    ``path`` holds ``train/CLASS/…`` and ``test/CLASS/…``, or ``CLASS/…``, of which a share is held out at random; a
    single folder around these is looked through. Classes are numbered as their folders are named if all are numbers,
    else in alphabetical order. ``limit``: at most so many images of each class are trained on; ``test_limit``: at most
    so many of a test folder's are tested on. For a detector, ``path`` is a folder of images with boxes, as
    :func:`leakscope.audit.images.load_images` takes it.
    """
    if not 0 < held_out < 1:
        raise BadInput(f"The share held out is {held_out}; it must lie between 0 and 1.")
    if spec.boxes:
        batch = load_images([str(path)], spec, labels_file).batch
        whole = Labelled(images=(batch.images * 255).round().to(torch.uint8), labels=batch.labels)
        train, test = _split(whole, held_out, generator)
        return train, test, ()
    by_part, classes = _sorted_out(_members(path), path)
    if len(classes) < 2:
        raise BadInput(f"'{path}' holds one class ({', '.join(classes)}); there is nothing to tell apart.")
    numbers = _numbers(classes, path, spec)
    parts = {
        part: _read(members, numbers, spec, test_limit if part == "test" else limit)
        for part, members in by_part.items()
    }
    if "test" in parts and "train" in parts:
        return parts["train"], parts["test"], classes
    train, test = _split(parts[""], held_out, generator)
    return train, test, classes


def load_drawn(
    sources: Sequence[str], spec: InputSpec, part: Literal["train", "test"], most: int, *, generator: torch.Generator
) -> Batch:
    """At most so many images of these sources, drawn at random and in their old order.

    Of a zip, those of its ``part`` where it is divided, and only these are read; everything else is as
    :func:`leakscope.audit.images.load_images` takes it.
    """
    zips = [Path(source) for source in sources if zipfile.is_zipfile(source)]
    if not zips:
        batch = load_images(sources, spec).batch
        rows = _drawn(len(batch), most, generator)
        names = tuple(batch.names[row] for row in rows) if batch.names else ()
        return Batch(images=batch.images[rows], labels=batch.labels[rows], names=names)
    if len(sources) > 1 or spec.boxes:
        raise BadInput(f"'{zips[0]}' is a zip: it is taken alone, and for models that learn from classes.")
    by_part, classes = _sorted_out(_members(zips[0]), zips[0])
    members = by_part[part] if part in by_part else by_part[""]
    picked = [members[row] for row in _drawn(len(members), most, generator)]
    read = _read(picked, _numbers(classes, zips[0], spec), spec, None)
    names = tuple(f"{one.place.parent.name}/{one.place.name}" for one in picked)
    return Batch(images=read.images.float() / 255, labels=read.labels, names=names)


def _drawn(count: int, most: int, generator: torch.Generator) -> list[int]:
    return sorted(torch.randperm(count, generator=generator)[:most].tolist())


def _numbers(classes: Sequence[str], path: Path, spec: InputSpec) -> dict[str, int]:
    """The classes by number, as their folders are named if all are numbers."""
    numbered = all(name.isdecimal() for name in classes)
    numbers = {name: int(name) if numbered else index for index, name in enumerate(classes)}
    if max(numbers.values()) >= spec.num_classes:
        raise BadInput(
            f"'{path}' has classes up to {max(numbers.values())}; the model has {spec.num_classes}. Give --num-classes."
        )
    return numbers


def _members(path: Path) -> list[_Member]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return [
            _Member(place=PurePosixPath(file.relative_to(path).as_posix()), open=lambda file=file: file.open("rb"))
            for file in files
        ]
    if not zipfile.is_zipfile(path):
        raise BadInput(f"'{path}' is neither a folder nor a zip file.")
    archive = zipfile.ZipFile(path)

    def unpack(entry: zipfile.ZipInfo) -> BinaryIO:
        if entry.file_size > _LARGEST:
            raise BadInput(f"'{entry.filename}' in '{path}' unpacks to {entry.file_size:,} bytes: that is no picture.")
        try:
            return io.BytesIO(archive.read(entry))
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError) as error:
            raise BadInput(f"'{entry.filename}' in '{path}' cannot be read: {error}") from error

    entries = sorted((entry for entry in archive.infolist() if not entry.is_dir()), key=lambda entry: entry.filename)
    return [_Member(place=PurePosixPath(entry.filename), open=lambda entry=entry: unpack(entry)) for entry in entries]


def _sorted_out(members: Sequence[_Member], path: Path) -> tuple[dict[str, list[_Member]], tuple[str, ...]]:
    """Members by part (``train`` and ``test``, or ``""``), and the classes, which are the folders they lie in."""
    images = [m for m in members if m.place.suffix.lower() in SUFFIXES and not m.place.name.startswith(".")]
    images = [m for m in images if len(m.place.parts) >= 2]
    if not images:
        raise BadInput(f"'{path}' holds no folders of images: put the images of each class into one of its own.")
    found: dict[str, list[_Member]] = {}
    for member in images:
        above = member.place.parts[-3] if len(member.place.parts) >= 3 else ""
        part = "train" if above == "train" else "test" if above in _HELD_OUT else ""
        found.setdefault(part, []).append(member)
    if set(found) not in ({"train", "test"}, {""}):
        found = {"": images}
    classes = {member.place.parent.name for member in images}
    numbered = all(name.isdecimal() for name in classes)
    return found, tuple(sorted(classes, key=lambda name: (int(name), name) if numbered else (0, name)))


def _read(members: Sequence[_Member], numbers: dict[str, int], spec: InputSpec, limit: int | None) -> Labelled:
    taken: Counter[str] = Counter()
    images: list[Tensor] = []
    labels: list[int] = []
    for member in members:
        kind = member.place.parent.name
        taken[kind] += 1
        if limit is not None and taken[kind] > limit:
            continue
        with member.open() as stream:
            item = Item(name=str(member.place), path=Path(member.place))
            image, _ = read_image(item, spec, Counter(), stream=stream)
        images.append((image * 255).round().to(torch.uint8))
        labels.append(numbers[kind])
    return Labelled(images=torch.stack(images), labels=torch.tensor(labels))


def _split(whole: Labelled, held_out: float, generator: torch.Generator) -> tuple[Labelled, Labelled]:
    if len(whole) < 2:
        raise BadInput("One image cannot be both trained on and held out: give at least two.")
    order = torch.randperm(len(whole), generator=fork(generator, "held out"))
    count = min(len(whole) - 1, max(1, round(held_out * len(whole))))
    return whole.rows(order[count:]), whole.rows(order[:count])
