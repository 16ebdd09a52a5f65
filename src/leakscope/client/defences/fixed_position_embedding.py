"""A fixed two-dimensional sine-cosine position table in place of a learnable one."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from leakscope.client.defences._parts import finite
from leakscope.client.registry import register_defence
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.types import Defence, Setting

__all__ = ["FixedPositionEmbedding", "sine_cosine_table"]


@final
@register_defence("fixed-position-embedding", cites="lu2022")
@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPositionEmbedding(Defence):
    """Replaces the learnable position table by a fixed 2-D sine-cosine one, which has no gradient to send.

    This is another model: weights trained with the learnable table must be trained again, at least tuned. Prefix
    tokens' rows become 0, as is usual. The server knows: it sends the model out.
    """

    temperature: float = 10_000.0

    def __post_init__(self) -> None:
        finite("temperature", self.temperature, low=1.0, strict=True)

    def prepare(self, setting: Setting, *, generator: torch.Generator) -> Setting:
        position = setting.model.anatomy.position_embedding
        if position is not None and not position.learnable:
            return setting
        return replace(setting, model=self.fixed(setting.model))

    def fixed(self, model: VisionModel) -> VisionModel:
        """A copy of ``model`` with the fixed table; the original stays as it is."""
        position, patches = model.anatomy.position_embedding, model.anatomy.patch_embedding
        if position is None or patches is None:
            raise BadInput(f"{model.name} has no position table with one row per patch, so none can be fixed.")
        module = copy.deepcopy(model.module)
        parent, _, leaf = position.name.rpartition(".")
        table: Tensor = getattr(module.get_submodule(parent), leaf)
        rows = sine_cosine_table(patches.grid, table.shape[-1], temperature=self.temperature)
        with torch.no_grad():
            table.zero_()
            table.view(-1, table.shape[-1])[position.prefix_in_table :] = rows.to(table)
        table.requires_grad_(False)
        return VisionModel(
            module,
            input=model.input,
            mean=model.mean.flatten().tolist(),
            std=model.std.flatten().tolist(),
            name=f"{model.name} (fixed positions)",
        )


def sine_cosine_table(grid: tuple[int, int], width: int, *, temperature: float = 10_000.0) -> Tensor:
    """(rows · columns, width): sine and cosine of the row, then of the column, at width/4 frequencies each."""
    if width % 4:
        raise BadInput(f"A two-dimensional sine-cosine table needs a width divisible by 4; this model's is {width}.")
    frequencies = temperature ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    angles = [axis.flatten()[:, None] * frequencies for axis in (y, x)]  # each (P, width / 4)
    return torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], dim=1)
