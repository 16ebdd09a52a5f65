"""Images as patches, the patches' own frequencies, and what a picture shows at the joints between them.

A patch embedding with weight (D, C, p, q) sees an image (C, H, W) as P = (H/p)(W/q) patches in row-major order, each
flattened to C·p·q numbers in the order of the weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["bands", "from_patches", "joint_jump", "range_excess", "to_frequencies", "to_patches"]


def to_patches(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """(…, C, H, W) → (…, P, C·p·q); H and W must be multiples of the patch."""
    p, q = patch
    *lead, c, h, w = images.shape
    cut = images.reshape(*lead, c, h // p, p, w // q, q)
    cut = cut.movedim((-4, -2), (-5, -4))  # (…, H/p, W/q, C, p, q)
    return cut.reshape(*lead, (h // p) * (w // q), c * p * q)


def from_patches(patches: Tensor, shape: tuple[int, int, int], patch: tuple[int, int]) -> Tensor:
    """(…, P, C·p·q) → (…, C, H, W): the inverse of :func:`to_patches`."""
    c, h, w = shape
    p, q = patch
    lead = patches.shape[:-2]
    cut = patches.reshape(*lead, h // p, w // q, c, p, q)
    return cut.movedim((-5, -4), (-4, -2)).reshape(*lead, c, h, w)


def to_frequencies(patches: Tensor, channels: int, patch: tuple[int, int], *, inverse: bool = False) -> Tensor:
    """Each patch, (…, C·p·q), in the orthonormal basis that separates frequencies, or back again.

    A discrete cosine transform (DCT-II) over channels, rows and columns; over three channels it gives luminance and
    two colour differences.
    """
    cut = patches.reshape(*patches.shape[:-1], channels, *patch)
    for axis in (-3, -2, -1):
        basis = _dct(cut.shape[axis]).to(cut)
        cut = (cut.movedim(axis, -1) @ (basis if inverse else basis.mT)).movedim(-1, axis)
    return cut.reshape(patches.shape)


def bands(channels: int, patch: tuple[int, int]) -> Tensor:
    """The band of each number that :func:`to_frequencies` gives, (C·p·q,): octaves, luminance and colour apart."""
    rows, columns = torch.meshgrid(torch.arange(patch[0]), torch.arange(patch[1]), indexing="ij")
    highest = torch.maximum(rows, columns).flatten()
    octave = torch.where(highest == 0, 0, 1 + highest.clamp_min(1).float().log2().floor().long())
    colour = octave + int(octave.max()) + 1
    return torch.cat([octave, *([colour] * (channels - 1))])


def joint_jump(images: Tensor, patch: tuple[int, int]) -> float:
    """The mean absolute step between neighbouring pixels on either side of a patch joint; 0 where there are none."""
    p, q = patch
    down = images.diff(dim=-2)[..., p - 1 :: p, :].abs().flatten()
    right = images.diff(dim=-1)[..., q - 1 :: q].abs().flatten()
    steps = torch.cat([down, right])
    return float(steps.mean()) if len(steps) else 0.0


def range_excess(images: Tensor) -> float:
    """By how much pixels leave [0, 1], root mean square."""
    return float((images - images.clamp(0, 1)).square().mean().sqrt())


def _dct(size: int) -> Tensor:
    """The orthonormal DCT-II matrix, (n, n), frequencies in rows."""
    i = torch.arange(size, dtype=torch.float64)
    rows = torch.cos(math.pi * (i + 0.5) * i[:, None] / size) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows
