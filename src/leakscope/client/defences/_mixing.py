"""Mixing images with partners, and their labels with them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.client.defences._others import drawn_others
from leakscope.errors import BadInput
from leakscope.types import Setting

__all__ = ["mixed"]


def mixed(setting: Setting, weights: Tensor, defence: str, generator: torch.Generator) -> Setting:
    """x_b ← Σ_j w_bj x_(b,j), labels likewise, by (B, k) weights whose rows sum to 1; partner 0 is the image itself.

    Partners are other images where there are enough, else the batch, moved on by one, two, … places in a random order.
    """
    count, k = weights.shape
    if setting.model.input.boxes:
        raise BadInput(f"'{defence}' mixes classes; {setting.model.name} is a detector, whose labels are boxes.")
    own = _probabilities(setting.labels, setting.model.input.num_classes)
    images, labels = [setting.images], [own]
    if setting.others is not None and len(setting.others) >= count * (k - 1):
        drawn, classes = drawn_others(setting, count * (k - 1), defence, generator)
        images += drawn.split(count)
        labels += _probabilities(classes, setting.model.input.num_classes).split(count)
    elif count >= k:
        order = torch.randperm(count, generator=generator)
        for shift in range(1, k):
            partner = torch.empty_like(order)
            partner[order] = order.roll(shift)
            images.append(setting.images[partner])
            labels.append(own[partner])
    else:
        raise BadInput(
            f"{defence} mixes each image with {k - 1} others: it needs a batch of at least {k}, or {count * (k - 1)} "
            f"other images passed to observe as others=Batch(…); the batch holds {count}."
        )
    share = weights.to(setting.images)
    x = sum(share[:, j, None, None, None] * images[j] for j in range(k))
    y = sum(share[:, j, None] * labels[j].to(share) for j in range(k))
    return replace(setting, images=x, labels=y)


def _probabilities(labels: Tensor, classes: int) -> Tensor:
    return labels if labels.ndim == 2 else F.one_hot(labels, classes).float()
