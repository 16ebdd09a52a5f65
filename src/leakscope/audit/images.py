"""Private images from files, folders or the bundled photographs, as a batch that fits a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.testing.bundled import bundled_images, bundled_info, bundled_names
from leakscope.types import Batch, InputSpec

__all__ = ["SUFFIXES", "Loaded", "count_images", "image_files", "load_images", "pieces"]

SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""The files of a folder that are taken for images."""

_BUNDLED: Final = "bundled:"
_DEEP: Final = ("I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A batch, and what was done to the files to make it: people should know what was really attacked."""

    batch: Batch
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One image to read: a file, or a bundled photograph by name; and its class, where the source tells."""

    name: str
    path: Path | None = None
    label: int | None = None


def count_images(sources: Sequence[str], base: Path = Path()) -> int:
    """How many images these sources hold, without reading them."""
    return sum(len(_find(source, base)) for source in sources)


def image_files(sources: Sequence[str], base: Path = Path()) -> list[Path]:
    """The files that these sources name; bundled photographs have none."""
    return [item.path for source in sources for item in _find(source, base) if item.path is not None]


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
    sources: Sequence[str], spec: InputSpec, labels: Sequence[int] | None = None, *, base: Path = Path()
) -> Loaded:
    """The images of files, folders (sorted by name) and ``bundled:NAME,NAME``, at the model's size and channels.

    Paths are looked up from ``base``.

    Pictures are cropped around their centre to the model's shape and resized (Lanczos). Without ``labels``, a folder
    of folders gives the classes (the number a sub-folder is named by, else its place among them); bundled photographs
    have their own; anything else is counted 0, 1, 2, … Classes that come by counting wrap around the model's.
    """
    items = [item for source in sources for item in _find(source, base)]
    if not items:
        raise BadInput("No images were given: name files, folders or bundled:NAME.")
    done: Counter[str] = Counter()
    images = torch.stack([_read(item, spec, done) for item in items])
    notices = [f"{text}: {count} of {len(items)} images." for text, count in done.items()]
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
    batch = Batch(images=images, labels=torch.tensor(chosen), names=tuple(item.name for item in items))
    return Loaded(batch=batch, notices=tuple(notices))


def _label(item: _Item, index: int, classes: int) -> int:
    if item.label is not None:
        return item.label
    if item.path is None:
        return next(info.label for info in bundled_info() if info.name == item.name) % classes
    return index % classes


def _find(source: str, base: Path) -> list[_Item]:
    if source.startswith(_BUNDLED):
        wanted = source.removeprefix(_BUNDLED)
        names = [name.strip() for name in wanted.split(",")] if wanted else list(bundled_names())
        return [_Item(name=name) for name in names]
    path = base / source
    if path.is_dir():
        return _find_in_folder(path)
    if not path.is_file():
        raise BadInput(f"There is no image or folder '{source}'. Bundled photographs are written bundled:NAME,NAME.")
    return [_Item(name=path.name, path=path)]


def _find_in_folder(folder: Path) -> list[_Item]:
    if files := _image_files(folder):
        return [_Item(name=file.name, path=file) for file in files]
    classes = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    classes = [entry for entry in classes if _image_files(entry)]
    if not classes:
        raise BadInput(f"The folder '{folder}' holds no images ({', '.join(sorted(SUFFIXES))}).")
    numbered = all(entry.name.isdecimal() for entry in classes)
    return [
        _Item(name=f"{entry.name}/{file.name}", path=file, label=int(entry.name) if numbered else index)
        for index, entry in enumerate(classes)
        for file in _image_files(entry)
    ]


def _image_files(folder: Path) -> list[Path]:
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entry for entry in entries if entry.suffix.lower() in SUFFIXES and entry.is_file())


def _read(item: _Item, spec: InputSpec, done: Counter[str]) -> Tensor:
    """One image, (C, H, W) in [0, 1]; what had to be done to it is counted in ``done``."""
    channels, height, width = spec.shape
    if channels not in (1, 3):
        raise BadInput(f"The model takes {channels} channels; image files give 1 (greyscale) or 3 (colour).")
    if item.path is None:
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
        return bundled_images([item.name], side, channels=channels)[0, :, top : top + height, left : left + width]
    try:
        with Image.open(item.path) as opened:
            picture = ImageOps.exif_transpose(opened)
            picture.load()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"'{item.path}' cannot be read as an image: {error}") from error
    picture, depth = _with_channels(picture, channels, item.path, done)
    if picture.size != (width, height):
        done[f"cropped around the centre and resized to {width} × {height} px"] += 1
        picture = _centre(picture, width / height).resize((width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(picture, dtype=np.float32).reshape(height, width, -1) / np.float32(depth)
    # A resampling filter with negative lobes may overshoot where pixels are not bytes.
    image = torch.from_numpy(pixels).permute(2, 0, 1).clamp(0, 1)
    return image.expand(channels, -1, -1).contiguous()


def _centre(picture: Image.Image, aspect: float) -> Image.Image:
    """The largest part of this aspect (width / height) around the centre."""
    width = min(picture.width, max(1, round(picture.height * aspect)))
    height = min(picture.height, max(1, round(picture.width / aspect)))
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((left, top, left + width, top + height))


def _with_channels(picture: Image.Image, channels: int, path: Path, done: Counter[str]) -> tuple[Image.Image, int]:
    """The picture in greyscale or colour as the model wants it, and the value of its brightest pixel."""
    if picture.mode in _DEEP:
        done["16-bit greyscale kept at its depth"] += 1
        return Image.fromarray(np.asarray(picture).astype(np.float32)), 65535
    if picture.mode in ("I", "F"):
        raise BadInput(f"'{path}' has 32-bit pixels (mode {picture.mode}), whose range is not known. Save it as 8-bit.")
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        done["transparency dropped"] += 1
    grey = picture.mode in ("1", "L", "LA", "La")
    if grey and channels == 3:
        done["greyscale repeated to three channels"] += 1
    if not grey and channels == 1:
        done["colour turned into greyscale"] += 1
    if picture.mode == "P":  # through RGBA: a palette may hold transparent colours
        picture = picture.convert("RGBA")
    return picture.convert("RGB" if channels == 3 else "L"), 255
