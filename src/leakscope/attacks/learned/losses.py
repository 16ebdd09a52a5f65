"""Errors between batches whose order nobody knows."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.functional.matching import match

__all__ = ["hungarian_mse"]


def hungarian_mse(made: Tensor, truth: Tensor) -> Tensor:
    """The mean over N batches of min over pairings π of MSE(made[π], truth); both (N, B, C, H, W).

    A gradient does not say in which order the images stand, so no order may be asked of an inverter (Wu et al. 2023).
    The pairing itself is not differentiated: it is constant almost everywhere.
    """
    if made.shape[1] > 1:
        order = torch.stack([match(one, other) for one, other in zip(made.detach(), truth, strict=True)])  # (N, B)
        made = made[torch.arange(len(made))[:, None], order.to(made.device)]
    return (made - truth).square().mean()
