"""Where an optimisation searches: the pixels themselves, or the coordinates of something that decodes to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, final

import torch
from torch import Tensor

from leakscope.types import Observation

__all__ = ["SEARCHES", "Decode", "Decoder", "Pink", "Pixels", "Search", "pink"]


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


_ALIKE: Final = 0.9
"""How strongly the colours of photographs are correlated."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pink:
    """Images by frequency f and colour: white coordinates N(0, 1) become pictures with a photograph's 1/f spectrum.

    Their colours go together, their pixels vary by 1. Steps of equal size change coarse features more than fine ones.
    """

    shape: tuple[int, ...]

    def __call__(self, free: Tensor) -> Tensor:
        return self._changed(free, 1)

    def encode(self, inputs: Tensor) -> Tensor:
        return self._changed(inputs, -1)

    def _changed(self, images: Tensor, power: int) -> Tensor:
        channels, height, width = self.shape[1:]
        up, across = torch.fft.fftfreq(height), torch.fft.rfftfreq(width)
        gain = 1 / (up[:, None].square() + across.square()).sqrt().clamp_min(1 / max(height, width))
        twice = torch.full_like(gain, 2.0)  # half of a real image's spectrum stands for the other half
        twice[:, 0] = 1.0
        if width % 2 == 0:
            twice[:, -1] = 1.0
        gain = (gain / ((twice * gain.square()).sum() / (height * width)).sqrt()) ** power
        alone, common = (1 - _ALIKE) ** (power / 2), (1 - _ALIKE + channels * _ALIKE) ** (power / 2)
        mixed = alone * images + (common - alone) * images.mean(1, keepdim=True)
        return torch.fft.irfft2(torch.fft.rfft2(mixed) * gain.to(images), s=(height, width))


def pink(observation: Observation) -> Pink:
    """A space in which all pictures of this size can be searched, the likely ones first. It needs no data."""
    return Pink(shape=(observation.batch_size, *observation.input.shape))


Search = Literal["pixels", "frequency"]
"""What an optimisation moves, by a name that plain data can give."""

SEARCHES: Final[dict[Search, Decode | None]] = {"pixels": None, "frequency": pink}
