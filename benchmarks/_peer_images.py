"""The images that both tools attack: from a folder, from a zip file, or the ones bundled with leakscope."""

from __future__ import annotations

import io
import zipfile
from collections import defaultdict
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image, ImageOps

import leakscope as ls

__all__ = ["read_images"]

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def read_images(data: Path | None, count: int, *, size: int) -> tuple[ls.Batch, int]:
    """``count`` images and the number of classes.

    ``data`` is a folder or zip in ImageFolder layout (``…/<class>/<image>``); of several splits the one called ``test``
    is taken. Classes take turns, each giving its first images by name, so that ten images of CIFAR-10 are ten classes.
    """
    if data is None:
        batch = ls.bundled_batch(size=size, num_classes=10)
        count = min(count, len(batch))
        return ls.Batch(images=batch.images[:count], labels=batch.labels[:count], names=batch.names[:count]), 10
    files = _files(data)
    if not files:
        raise ls.BadInput(f"No images ({', '.join(sorted(SUFFIXES))}) were found in {data}.")
    tests = {path: content for path, content in files.items() if "test" in path.parts[:-1]}
    groups: dict[str, list[PurePosixPath]] = defaultdict(list)
    for path in sorted(tests or files):
        groups[path.parent.name].append(path)
    turns = sorted(
        (turn, label, path) for label, group in enumerate(groups.values()) for turn, path in enumerate(group)
    )[:count]
    pixels = [_pixels(_read(data, path), size) for _, _, path in turns]
    names = tuple(f"{path.parent.name}/{path.stem}" for _, _, path in turns)
    labels = torch.tensor([label for _, label, _ in turns])
    return ls.Batch(images=torch.stack(pixels), labels=labels, names=names), max(len(groups), 2)


def _files(data: Path) -> dict[PurePosixPath, None]:
    if data.is_dir():
        found = (PurePosixPath(path.relative_to(data).as_posix()) for path in data.rglob("*") if path.is_file())
    elif zipfile.is_zipfile(data):
        with zipfile.ZipFile(data) as archive:
            found = [PurePosixPath(name) for name in archive.namelist()]
    else:
        raise ls.BadInput(f"{data} is neither a folder nor a zip file of images.")
    return {path: None for path in found if path.suffix.lower() in SUFFIXES and "__MACOSX" not in path.parts}


def _read(data: Path, path: PurePosixPath) -> bytes:
    if data.is_dir():
        return (data / path).read_bytes()
    with zipfile.ZipFile(data) as archive:
        return archive.read(str(path))


def _pixels(content: bytes, size: int) -> torch.Tensor:
    """(3, size, size) in [0, 1]: the centre square, resampled only if it is not that size already."""
    with Image.open(io.BytesIO(content)) as picture:
        picture = picture.convert("RGB")
        if picture.size != (size, size):
            picture = ImageOps.fit(picture, (size, size), method=Image.Resampling.LANCZOS)
        return torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255).permute(2, 0, 1).contiguous()
