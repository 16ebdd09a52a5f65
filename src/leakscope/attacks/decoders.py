"""Where an optimisation searches: the pixels themselves, or the coordinates of something that decodes to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

from torch import Tensor

from leakscope.types import Observation

__all__ = ["Decode", "Decoder", "Pixels"]


class Decoder(Protocol):
    """Free coordinates of ``shape`` ↦ normalised images (B, C, H, W), differentiable."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the coordinates of a whole batch."""
        ...

    def __call__(self, free: Tensor) -> Tensor:
        """Normalised images at these coordinates."""
        ...

    def encode(self, inputs: Tensor) -> Tensor:
        """The coordinates nearest to normalised images: the way back for projections, which act on pictures.

        A decoder without one raises :class:`~leakscope.errors.BadInput`; attacks with it need ``project=None``.
        """
        ...


Decode = Callable[[Observation], Decoder]
"""Makes the decoder for an observation, once for each restart. A function of a module, so that workers can load it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """Normalised images as they are."""

    shape: tuple[int, ...]

    def __call__(self, free: Tensor) -> Tensor:
        return free

    def encode(self, inputs: Tensor) -> Tensor:
        return inputs
