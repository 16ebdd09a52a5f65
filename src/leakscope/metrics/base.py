"""What a metric is, and the register of all of them.

A metric is a pure function ``(reconstruction, truth) -> (B,)`` of matched images (B, C, H, W) in [0, 1]: one number per
image, never a mean over the batch. Adding one is adding a file to this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.registry import Registry

__all__ = [
    "METRICS",
    "ImageShape",
    "Metric",
    "Requirement",
    "as_pairs",
    "by_image",
    "image_shape",
    "metric",
    "nan_scores",
]

ImageShape = tuple[int, int, int]
"""One image's (C, H, W)."""

Requirement = Callable[[ImageShape], str | None]
"""Why a metric is not defined for images of this shape, or ``None`` where it is."""

F = TypeVar("F", bound=Callable[..., Tensor])


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A named measure of likeness between matched images.

    ``fn`` takes reconstruction and truth, (B, C, H, W) each, and returns (B,). ``undefined`` gives the reason why the
    metric has no value for some image shape (its values are NaN there); ``chance`` the value that a reconstruction
    which knows nothing would be expected to reach against these originals.
    """

    name: str
    fn: Callable[..., Tensor]
    higher_is_better: bool
    undefined: Requirement | None = None
    chance: Callable[[Tensor], float] | None = None

    def __call__(self, reconstruction: Tensor, truth: Tensor) -> Tensor:
        return self.fn(reconstruction, truth)

    def reason_undefined(self, shape: ImageShape) -> str | None:
        """Why images of this shape (C, H, W) have no score, or ``None`` if they have one."""
        return self.undefined(shape) if self.undefined else None


METRICS: Registry[Metric] = Registry("metric", "leakscope.metrics")


def metric(
    name: str,
    *,
    higher_is_better: bool,
    cites: str | None = None,
    undefined: Requirement | None = None,
    chance: Callable[[Tensor], float] | None = None,
) -> Callable[[F], F]:
    """Decorator: enter a metric function under ``name``; its docstring's first line is shown to users."""

    def enter(fn: F) -> F:
        value = Metric(name=name, fn=fn, higher_is_better=higher_is_better, undefined=undefined, chance=chance)
        METRICS.add(name, value, cites=cites, summary=(fn.__doc__ or "").strip().partition("\n")[0])
        return fn

    return enter


def as_pairs(reconstruction: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides as float64 on the processor, (B, C, H, W), after checking that they fit together.

    Float64 because closed-form attacks come back with errors near 1e-26, far below what float32 can tell from zero.
    """
    for side, images in (("reconstruction", reconstruction), ("truth", truth)):
        if images.ndim != 4 or not images.is_floating_point() or images.numel() == 0:
            raise BadInput(
                f"The {side} must be a float tensor (B, C, H, W) that is not empty; got {images.dtype} "
                f"{tuple(images.shape)}."
            )
    if reconstruction.shape != truth.shape:
        raise BadInput(
            f"Reconstruction {tuple(reconstruction.shape)} and truth {tuple(truth.shape)} must have one shape "
            "(B, C, H, W): as many images, as many channels, the same size."
        )
    return reconstruction.detach().to("cpu", torch.float64), truth.detach().to("cpu", torch.float64)


def image_shape(images: Tensor) -> ImageShape:
    """One image's (C, H, W), of (B, C, H, W)."""
    _, channels, height, width = images.shape
    return channels, height, width


def by_image(fn: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> Tensor:
    """``fn`` of each pair (1, C, H, W) by itself, stacked to (B,).

    One image at a time bounds the memory, and keeps an image's score free of its neighbours to the last bit.
    """
    return torch.stack([fn(left[i : i + 1], right[i : i + 1]) for i in range(len(left))])


def nan_scores(images: Tensor) -> Tensor:
    """(B,) NaN: the value of a metric that is not defined for these images."""
    return torch.full((images.shape[0],), float("nan"), dtype=torch.float64)
