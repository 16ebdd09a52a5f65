"""``torch.autograd.grad`` with its answer typed as it is: what a loss does not depend on has no gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["gradients"]


def gradients(
    loss: Tensor, wanted: Sequence[Tensor], *, create_graph: bool = False, retain_graph: bool | None = None
) -> Sequence[Tensor | None]:
    """∂loss/∂w for each ``w`` wanted; ``None`` where the loss does not depend on it."""
    return torch.autograd.grad(
        loss, list(wanted), create_graph=create_graph, retain_graph=retain_graph, allow_unused=True
    )
