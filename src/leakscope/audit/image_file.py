"""One image from a file or the bundled photographs, in the shape that a model takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.functional.boxes import Letterbox
from leakscope.testing.bundled import bundled_images
from leakscope.types import InputSpec

__all__ = ["Item", "read_image"]

_DEEP: Final = ("I;16", "I;16L", "I;16B", "I;16N")
_BARS: Final = 114
"""The grey of the bars around a letterboxed picture, of 255, as YOLO paints them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One image to read: a file, or a bundled photograph by name; and its class, where the source tells."""

    name: str
    path: Path | None = None
    label: int | None = None


def read_image(
    item: Item, spec: InputSpec, done: Counter[str], *, stream: BinaryIO | None = None
) -> tuple[Tensor, Letterbox]:
    """One image, (C, H, W) in [0, 1]; what had to be done to it is counted in ``done``.

    A classifier's is cropped around its centre; a detector's is letterboxed, as the second answer says: no object may
    be cut away. ``stream`` holds the file's content where it is no file of its own.
    """
    channels, height, width = spec.shape
    if channels not in (1, 3):
        raise BadInput(f"The model takes {channels} channels; image files give 1 (greyscale) or 3 (colour).")
    if item.path is None:
        side = max(height, width)
        top, left = (side - height) // 2, (side - width) // 2
        if spec.boxes and height != width:
            raise BadInput(f"Bundled photographs are square; this detector takes {width} × {height} px.")
        image = bundled_images([item.name], side, channels=channels)[0, :, top : top + height, left : left + width]
        return image, Letterbox(source=(width, height), target=(width, height))
    try:
        with Image.open(item.path if stream is None else stream) as opened:
            picture = ImageOps.exif_transpose(opened)
            picture.load()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"'{item.path}' cannot be read as an image: {error}") from error
    picture, depth = _with_channels(picture, channels, item.path, done)
    frame = Letterbox(source=picture.size, target=(width, height))
    if spec.boxes and picture.size != (width, height):
        done[f"letterboxed to {width} × {height} px"] += 1
        inside = picture.resize(frame.inner, Image.Resampling.LANCZOS)
        bars = _BARS * depth / 255
        picture = Image.new(picture.mode, (width, height), (round(bars),) * 3 if picture.mode == "RGB" else bars)
        picture.paste(inside, frame.offset)
    elif picture.size != (width, height):
        done[f"cropped around the centre and resized to {width} × {height} px"] += 1
        picture = _centre(picture, width / height).resize((width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(picture, dtype=np.float32).reshape(height, width, -1) / np.float32(depth)
    # A resampling filter with negative lobes may overshoot where pixels are not bytes.
    image = torch.from_numpy(pixels).permute(2, 0, 1).clamp(0, 1)
    return image.expand(channels, -1, -1).contiguous(), frame


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
