"""Registration: several pictures of one thing, brought into line before they are averaged.

Phase correlation finds the shift, optical flow what is left of the displacement (both scikit-image's, imported when
first used). GradViT uses RANSAC-flow, a trained network; any sound registration serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from leakscope.errors import MissingExtra

__all__ = ["Alignment", "consensus", "register", "warp"]

Alignment = Literal["none", "shift", "flow"]
"""Leave members as they are; shift each as a whole; or shift it, then follow the optical flow."""


def consensus(members: Sequence[Tensor], align: Alignment = "flow") -> Tensor:
    """x_C = 1/|S| Σ_s F_{s→m}(x_s), each member registered to the plain mean x_m (GradViT, Eq. 9); (B, C, H, W)."""
    mean = torch.stack(tuple(members)).mean(0)
    if align == "none" or len(members) < 2:
        return mean
    return torch.stack([register(member, mean, align) for member in members]).mean(0)


def register(source: Tensor, target: Tensor, align: Alignment = "flow") -> Tensor:
    """Each image of ``source`` (B, C, H, W), moved so that it lies over that of ``target``.

    A displacement that does not bring an image nearer to its target (least squares) is not made: among noise, any
    registration finds shifts that mean nothing.
    """
    if align == "none":
        return source
    return torch.stack([_one(image, onto, align) for image, onto in zip(source, target, strict=True)])


def _one(source: Tensor, target: Tensor, align: Alignment) -> Tensor:
    tools = _tools()
    fixed = _grey(target)
    best, best_error = source, _error(source, target)
    shift, *_ = tools.phase_cross_correlation(fixed, _grey(source))
    whole = np.broadcast_to(-np.asarray(shift, dtype=np.float64)[:, None, None], (2, *fixed.shape))
    zero = np.zeros((2, *fixed.shape))
    for start in (whole, zero) if np.any(shift) else (zero,):
        moved = warp(source, start)
        if _error(moved, target) < best_error:
            best, best_error = moved, _error(moved, target)
        if align == "flow" and min(fixed.shape) >= _LEAST:
            flow = tools.optical_flow_ilk(fixed, _grey(moved), radius=_RADIUS)
            followed = warp(source, start + flow)
            if _error(followed, target) < best_error:
                best, best_error = followed, _error(followed, target)
    return best


_RADIUS = 5
_LEAST = 2 * _RADIUS  # in smaller pictures there is no window to see a flow in


def warp(image: Tensor, displacement: np.ndarray[Any, Any]) -> Tensor:
    """``image`` (C, H, W) read at row + displacement[0], column + displacement[1], bilinearly, its edge continued."""
    _, height, width = image.shape
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    y = (2 * (rows + displacement[0]) + 1) / height - 1
    x = (2 * (columns + displacement[1]) + 1) / width - 1
    grid = torch.from_numpy(np.stack([x, y], axis=-1)).to(image)  # (H, W, 2) in [−1, 1]
    read = torch.nn.functional.grid_sample(image[None], grid[None], padding_mode="border", align_corners=False)
    return read[0]


def _grey(image: Tensor) -> np.ndarray[Any, Any]:
    return image.detach().mean(0).to("cpu", torch.float64).numpy()


def _error(image: Tensor, target: Tensor) -> float:
    return float((image - target).square().mean())


def _tools() -> Any:
    try:
        from skimage import registration
    except ImportError as error:
        raise MissingExtra("Registering pictures by phase correlation and optical flow", "priors") from error
    return registration
