"""Pairs on disk: what was replayed once is not replayed again, within a limit of space."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from leakscope.errors import BadInput

__all__ = ["Cache"]

log = logging.getLogger(__name__)

Chunk = tuple[Tensor, dict[str, Tensor]]
"""Indices (n, B) of public images, and what the inverter reads of the signal, {name: (n, width)}."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A folder of sets of pairs, each in its own sub-folder, one safetensors file for each chunk.

    No more than ``limit`` bytes are kept: the sets used longest ago go first, and a set that is larger by itself is
    not kept at all. A chunk is written in one move, so a killed run leaves whole chunks, and the next goes on there.
    """

    folder: Path
    limit: int

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise BadInput(f"The limit of the cache is {self.limit} bytes; it must not be negative.")

    def gather(self, key: str, make: Callable[[int], Iterator[Chunk]]) -> Chunk:
        """All chunks of the set ``key`` in one; those that are not on disk come from ``make(first one missing)``."""
        place = self.folder / key
        chunks = list(self._kept(place))
        size = sum(_bytes(chunk) for chunk in chunks)
        for number, chunk in enumerate(make(len(chunks)), start=len(chunks)):
            chunks.append(chunk)
            size += _bytes(chunk)
            if size <= self.limit:
                self._make_room(place, size)
                _write(place / f"{number:06}.safetensors", chunk)
        if size > self.limit:
            log.warning("%d MB of pairs are more than the cache may hold: they are not kept.", size // 2**20)
            shutil.rmtree(place, ignore_errors=True)
        elif place.exists():
            os.utime(place)
        return joined(chunks)

    def _kept(self, place: Path) -> Iterator[Chunk]:
        number = 0
        while (path := place / f"{number:06}.safetensors").exists():
            try:
                content = load_file(path)
            except (SafetensorError, OSError, ValueError):
                log.warning("%s cannot be read: it is made again.", path)
                return
            yield content.pop("indices"), content
            number += 1

    def _make_room(self, place: Path, size: int) -> None:
        others = [one for one in self.folder.glob("*") if one.is_dir() and one != place] if self.folder.exists() else []
        others.sort(key=lambda one: one.stat().st_mtime)
        held = sum(_size(one) for one in others)
        while others and held + size > self.limit:
            oldest = others.pop(0)
            held -= _size(oldest)
            shutil.rmtree(oldest, ignore_errors=True)


def joined(chunks: list[Chunk]) -> Chunk:
    """Chunks as one."""
    indices = torch.cat([one for one, _ in chunks])
    return indices, {name: torch.cat([values[name] for _, values in chunks]) for name in chunks[0][1]}


def _write(path: Path, chunk: Chunk) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    save_file({"indices": chunk[0].contiguous(), **{n: v.contiguous() for n, v in chunk[1].items()}}, part)
    part.replace(path)


def _bytes(chunk: Chunk) -> int:
    return sum(value.numel() * value.element_size() for value in (chunk[0], *chunk[1].values()))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*"))
