"""The statistics that normalisation layers work with: taken from features, or read back from running averages."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakscope.errors import BadInput

__all__ = ["NORMS", "Moments", "batch_moments", "channels_first", "moments"]

Moments = tuple[Tensor, Tensor]
"""(mean, variance) of a layer's input, the variance divided by n, as layers normalise with it."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS: tuple[type[nn.Module], ...] = (*_BATCH_NORMS, *_INSTANCE_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Layers whose statistics :func:`moments` can take."""


def batch_moments(
    before: Moments, after: Moments, *, momentum: float | None, count: int, steps: int = 1, tracked: int = 0
) -> Moments:
    """The mean and variance of the batch that moved a BatchNorm layer's running statistics r to r'.

    One step moves them by r' = (1 − m) r + m s, so s = (r' − (1 − m) r)/m. The running variance takes s with n − 1 in
    the denominator, the layer normalises with n: σ²* = s (n − 1)/n. (Valadi et al. 2025.)

    ``momentum`` is the layer's own; ``None`` is the cumulative average, m = 1/k in its k-th step, for which ``tracked``
    is the number of steps before. ``count``: n = B·H·W values per channel in one step. Of several ``steps`` what comes
    back is their weighted mean, s̄ = (r' − w r)/(1 − w) with w = Π (1 − m): no batch's own statistics.
    """
    if count < 2:
        raise BadInput(f"A BatchNorm layer saw {count} value per channel; a variance needs at least 2.")
    if steps < 1 or tracked < 0:
        raise BadInput(f"steps is {steps} and tracked {tracked}; at least 1 and 0 are needed.")
    if momentum is not None and not 0 < momentum <= 1:
        raise BadInput(f"momentum is {momentum}; statistics can be read back for 0 < momentum ≤ 1, or None.")
    kept = tracked / (tracked + steps) if momentum is None else (1 - momentum) ** steps
    mean, spread = ((new - kept * old) / (1 - kept) for old, new in zip(before, after, strict=True))
    return mean, spread * ((count - 1) / count)


def moments(layer: nn.Module, features: Tensor) -> Moments:
    """The mean and variance that ``layer`` normalises ``features`` with, the mean over images where each has its own.

    BatchNorm (B, C, …): one for each channel. InstanceNorm: the same, image by image. GroupNorm: one for each group.
    LayerNorm: one for each place (token, pixel) over its features. RMSNorm does not centre: its mean is 0 and its
    variance the mean square.
    """
    if isinstance(layer, _BATCH_NORMS):
        return _over(features.transpose(0, 1).flatten(1), 1)
    if isinstance(layer, _INSTANCE_NORMS):
        batched = features.flatten(2) if features.ndim > 2 else features.unsqueeze(0)
        return _mean_of_images(_over(batched, 2))  # (B, C)
    if isinstance(layer, nn.GroupNorm):
        return _mean_of_images(_over(features.reshape(len(features), layer.num_groups, -1), 2))  # (B, groups)
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        if channels_first(layer, features):
            features = features.movedim(1, -1)
        rows = features.flatten(-len(layer.normalized_shape))  # (B, …, values)
        if isinstance(layer, nn.RMSNorm):
            square = rows.square().mean(-1)
            return _mean_of_images((square.new_zeros(square.shape), square))
        return _mean_of_images(_over(rows, -1))
    raise BadInput(f"{type(layer).__name__} is no normalisation layer whose statistics are known here.")


def channels_first(layer: nn.LayerNorm | nn.RMSNorm, features: Tensor) -> bool:
    """Whether this norm acts over the channels of (B, C, H, W), as the ``2d`` ones of timm and torchvision do."""
    return features.ndim == 4 and len(layer.normalized_shape) == 1 and "2d" in type(layer).__name__


def _over(values: Tensor, dim: int) -> Moments:
    variance, mean = torch.var_mean(values, dim=dim, correction=0)
    return mean, variance


def _mean_of_images(found: Moments) -> Moments:
    mean, variance = found
    return mean.mean(0), variance.mean(0)
