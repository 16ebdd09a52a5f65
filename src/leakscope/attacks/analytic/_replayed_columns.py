"""The column of D that an image has: known from the image and its label alone, by replaying the client on it.

That settles what sparsity cannot. Where the units that sample i switches off are all off for sample j too, d_i + c d_j
has no fewer zeros than d_i for any c, and sparsity may prefer a wrong c. Yet such a mixture leaves a_i as it is, and
spoils a_j only. So each input that came back is replayed: if its own column lies in the column space of the layer's
gradient, it is a true sample, and its true column takes the place of the one found. And in the end each column that
was found must be the one that its image has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.analytic._undo import before_layer
from leakscope.attacks.analytic.chain import Link
from leakscope.errors import NotApplicable
from leakscope.types import Observation

__all__ = ["Replayed", "replay_columns"]

_OUTSIDE: Final = 1e-5


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """``labels`` (B,) and ``gap``, the largest sine of the angle between a column found and the one its image has.

    ``true`` holds the columns of those that are shown to be samples, as unit directions (B,) in the basis L, by index.
    """

    labels: Tensor
    gap: float
    true: Mapping[int, Tensor]


def replay_columns(
    observation: Observation, before: tuple[Link, ...], link: Link, left: Tensor, inputs: Tensor, mixing: Tensor
) -> Replayed:
    """Replay each input (of B, n) with each label it may have; ``mixing`` M (B, B) gives the columns found, L M."""
    model = observation.model
    known = observation.labels
    candidates = list(range(model.input.num_classes)) if known is None else sorted(set(known.tolist()))
    labels, gap, true = torch.full((len(inputs),), candidates[0], device=model.device), 0.0, dict[int, Tensor]()
    for index, one in enumerate(inputs):
        try:
            pixels = before_layer(model, before, link, one.to(model.device)).pixels
        except NotApplicable:  # no image
            gap = 1.0
            continue
        columns = _unit(_columns(observation, link, pixels, candidates))  # (K, m)
        inside = columns @ left  # (K, B)
        outside = (columns - inside @ left.mT).norm(dim=1)
        best = int(outside.argmin())
        if float(outside[best]) < _OUTSIDE and bool(columns[best].any()):
            true[index] = inside[best] / inside[best].norm()
        own = mixing[:, index] / mixing[:, index].norm()
        along = inside @ own
        # The norm of the difference, not √(1 − cos²): that would end at the square root of rounding.
        apart = (columns - along[:, None] * (left @ own)).norm(dim=1)
        labels[index] = candidates[int(apart.argmin())]
        gap = max(gap, float(apart.min()))
    return Replayed(labels=labels, gap=gap, true=true)


def _columns(observation: Observation, link: Link, pixels: Tensor, labels: list[int]) -> Tensor:
    """∂L/∂b of the layer for this image alone, (K, m): a row for each of the labels."""
    assert link.bias is not None
    replay, model = observation.protocol.replay, observation.model
    image = pixels.clamp(0, 1).to(model.dtype)[None]
    each = torch.tensor(labels, device=image.device)[:, None]  # (K, 1)
    return torch.stack([replay(model, image, one)[link.bias].detach().double().cpu() for one in each])


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
