"""Company for the private batch, for defences that hide it among other images."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.types import Setting

__all__ = ["drawn_others"]


def drawn_others(setting: Setting, count: int, defence: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` of the other images at random, with their labels."""
    others = setting.others
    have = 0 if others is None else len(others)
    if others is None or have < count:
        raise BadInput(
            f"{defence} needs {count} other images beside the private batch; {have} were given. Pass them to "
            "observe as others=Batch(…)."
        )
    if others.images.shape[1:] != setting.images.shape[1:]:
        raise BadInput(
            f"The other images are {tuple(others.images.shape[1:])}, the private {tuple(setting.images.shape[1:])}."
        )
    rows = torch.randperm(have, generator=generator)[:count]
    return others.images[rows].to(setting.images), others.labels[rows].to(setting.labels.device)
