"""A campaign's ended cells as a judge sees them: records, reconstructions and originals, read back from the folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from leakscope.audit.cell import CELLS, Cell, Manifest
from leakscope.audit.identification import thumbnails
from leakscope.audit.record import FAILED, REFUSED, SKIPPED, Record
from leakscope.audit.store import TENSORS
from leakscope.audit.summaries import PENDING
from leakscope.errors import BadInput
from leakscope.types import Status

__all__ = ["Shot", "read_shots"]

_CONCLUDED: Final = frozenset(
    {Status.FINISHED.value, Status.PLATEAU.value, Status.TARGET_REACHED.value, Status.OUT_OF_TIME.value}
)

_AGAIN: Final = "Remove the folder and run the cell again."


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A cell with its record, if it has one that can be read, and the folder of both."""

    cell: Cell
    folder: Path
    record: Record | None = None
    damage: str = ""
    _thumbnails: dict[str, Tensor] = field(default_factory=dict[str, Tensor], repr=False, compare=False)

    @property
    def status(self) -> str:
        if self.damage:
            return FAILED
        return PENDING if self.record is None else self.record.status

    @property
    def message(self) -> str:
        if self.damage or self.record is None:
            return self.damage or "This cell has not run yet."
        return self.record.message

    @property
    def brought(self) -> bool:
        """Whether there are images to judge, however the attack ended."""
        return self.record is not None and bool(self.record.pictures)

    @property
    def concluded(self) -> bool:
        """Whether the attack came to its own end or used up its budget: only then is finding nothing a result."""
        return self.brought and self.status in _CONCLUDED

    @property
    def open(self) -> bool:
        """Still to run, or broken off by hand."""
        return self.status in (PENDING, Status.INTERRUPTED.value)

    @property
    def refused(self) -> bool:
        return self.status == REFUSED

    @property
    def skipped(self) -> bool:
        return self.status == SKIPPED

    def score(self, name: str, index: int) -> float:
        """One metric of one image; NaN where it was not computed."""
        values = None if self.record is None else self.record.metric(name)
        return float("nan") if values is None or index >= len(values) else values[index]

    def scores(self, index: int) -> dict[str, float]:
        """Every metric of one image."""
        names = () if self.record is None else self.record.scores.get("metrics", {})
        return {str(name): self.score(str(name), index) for name in names}

    def reconstructions(self) -> Tensor:
        """The reconstructions in the originals' order, (B, C, h, w), as thumbnails."""
        if "reconstructions" not in self._thumbnails:
            path = self.folder / TENSORS
            try:
                images = load_file(path)["images"]
            except (OSError, SafetensorError, KeyError) as error:
                raise BadInput(
                    f"'{path}' cannot be read: {error}. Remove the folder and run the cell again."
                ) from error
            self._thumbnails["reconstructions"] = thumbnails(images)
        return self._thumbnails["reconstructions"]

    def originals(self) -> Tensor:
        """The originals, (B, C, h, w), as thumbnails."""
        if "originals" not in self._thumbnails:
            self._thumbnails["originals"] = torch.cat([thumbnails(image[None]) for image in self._pictures()])
        return self._thumbnails["originals"]

    def blank_psnr(self, index: int) -> float:
        """What the best single colour would reach against original ``index``, in dB."""
        image = self._pictures()[index].double()
        variance = image.var((1, 2), correction=0).mean()
        return float(-10 * torch.log10(variance))

    def _pictures(self) -> list[Tensor]:
        assert self.record is not None
        channels = self.record.target.shape[0]
        return [_picture(self.folder / Path(p.original).name, channels) for p in self.record.pictures]


def read_shots(folder: Path, manifest: Manifest, cells: Iterable[Cell]) -> list[Shot]:
    """The cells with their records; a damaged one is a failure, never a reason to stop."""
    shots: list[Shot] = []
    for cell in cells:
        place = folder / CELLS / cell.key
        try:
            shot = Shot(cell=cell, folder=place, record=manifest.record(folder, cell))
            if shot.brought and (len(shot.reconstructions()) != len(shot.originals())):
                raise BadInput(f"'{place}' holds another number of pictures than of reconstructions. {_AGAIN}")
            shots.append(shot)
        except BadInput as error:
            shots.append(Shot(cell=cell, folder=place, damage=str(error)))
    return shots


@lru_cache(maxsize=64)
def _picture(path: Path, channels: int) -> Tensor:
    """A stored picture, (C, H, W) in [0, 1]."""
    try:
        with Image.open(path) as opened:
            pixels = np.asarray(opened.convert("L" if channels == 1 else "RGB"), dtype=np.float32) / np.float32(255)
    except (OSError, UnidentifiedImageError) as error:
        raise BadInput(f"'{path}' cannot be read: {error}. {_AGAIN}") from error
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)
