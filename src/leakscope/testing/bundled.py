"""A dozen freely licensed photographs that ship with the package, for demonstrations, tests and galleries.

Every picture is 256 × 256 px and stored without loss, so that it decodes to the same bytes everywhere. Sources, authors
and licences stand beside the pictures in ``images/images.toml`` and in ``docs/images.md``.
"""

from __future__ import annotations

import io
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leakscope.errors import BadInput, UnknownName
from leakscope.types import Batch

__all__ = ["BundledImage", "bundled_batch", "bundled_images", "bundled_info", "bundled_names"]

_FOLDER = resources.files("leakscope.testing") / "images"
_LARGEST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledImage:
    """One picture's papers: what it shows, who made it, where it comes from and under which licence.

    ``crop`` is (left, top, right, bottom) in pixels of the source; ``label`` is the default class out of ten.
    """

    name: str
    file: str
    title: str
    author: str
    licence: str
    source: str
    crop: tuple[int, int, int, int]
    label: int


@cache
def bundled_info() -> tuple[BundledImage, ...]:
    """What is known about each bundled picture, in the order of :func:`bundled_names`."""
    rows: list[dict[str, Any]] = tomllib.loads((_FOLDER / "images.toml").read_text(encoding="utf-8"))["image"]
    for row in rows:
        row["crop"] = tuple(row["crop"])
    return tuple(BundledImage(**row) for row in rows)


def bundled_names() -> tuple[str, ...]:
    """The names of the bundled pictures; the position of a name gives its default label."""
    return tuple(info.name for info in bundled_info())


def bundled_images(names: Sequence[str] | None = None, size: int = 256, *, channels: int = 3) -> Tensor:
    """Bundled pictures as float32 pixels, (N, channels, size, size) in [0, 1].

    Args:
        names: which pictures, in this order; all of them by default.
        size: side in pixels. Other sizes than 256 are resampled with an antialiasing Lanczos filter.
        channels: 3 for RGB, 1 for greyscale (ITU-R 601 luma).
    """
    chosen = _chosen(names)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _LARGEST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadInput(f"The image size must be a whole number of pixels from 1 to {_LARGEST}; got {size!r}.")
    if channels not in (1, 3):
        raise BadInput(f"Bundled images have 3 channels (RGB) or 1 (greyscale); got channels={channels!r}.")
    return torch.stack([_pixels(info.file, size, channels) for info in chosen])


def bundled_batch(
    names: Sequence[str] | None = None,
    *,
    size: int,
    labels: Sequence[int] | None = None,
    num_classes: int = 10,
    channels: int = 3,
) -> Batch:
    """Bundled pictures as a client's private batch.

    Args:
        names: which pictures, in this order; all of them by default.
        size: side in pixels.
        labels: a class index per picture. By default a picture's class is its position in :func:`bundled_names`
            modulo ``num_classes``: distinct for the first ten pictures when there are ten classes.
        num_classes: how many classes there are; every label must lie below it.
        channels: 3 for RGB, 1 for greyscale.
    """
    chosen = _chosen(names)
    if num_classes < 1:
        raise BadInput(f"num_classes must be at least 1; got {num_classes}.")
    if labels is None:
        order = bundled_names()
        labels = [order.index(info.name) % num_classes for info in chosen]
    elif len(labels) != len(chosen):
        raise BadInput(f"{len(labels)} labels were given for {len(chosen)} images; one label per image is needed.")
    outside = [label for label in labels if not 0 <= label < num_classes]
    if outside:
        raise BadInput(f"Labels must lie in 0…{num_classes - 1} for {num_classes} classes; got {outside[0]}.")
    names = tuple(info.name for info in chosen)
    images = bundled_images(names, size, channels=channels)
    return Batch(images=images, labels=torch.tensor(list(labels), dtype=torch.long), names=names)


def _chosen(names: Sequence[str] | None) -> tuple[BundledImage, ...]:
    by_name = {info.name: info for info in bundled_info()}
    if names is None:
        return tuple(by_name.values())
    if isinstance(names, str):
        # A bare string is a sequence of letters; the caller meant a list of one name.
        raise BadInput(f"Give the names as a list, for instance [{names!r}]; got the string {names!r}.")
    if not names:
        raise BadInput("No image was named: give at least one name, or None for all of them.")
    for name in names:
        if name not in by_name:
            raise UnknownName("bundled image", name, by_name)
    return tuple(by_name[name] for name in names)


@cache
def _decoded(file: str) -> Image.Image:
    """The stored picture, RGB."""
    with Image.open(io.BytesIO((_FOLDER / PurePosixPath(file).name).read_bytes())) as picture:
        return picture.convert("RGB")


def _pixels(file: str, size: int, channels: int) -> Tensor:
    """One picture as (channels, size, size) in [0, 1]."""
    picture = _decoded(file).convert("RGB" if channels == 3 else "L")
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.LANCZOS)
    pixels = np.asarray(picture, dtype=np.float32).reshape(size, size, channels) / np.float32(255)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
