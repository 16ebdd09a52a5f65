"""Undoing a layer on its own: its input from its output, in float64, where that is unique."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.analytic.chain import Link
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import numerical_rank, relative
from leakscope.functional.patches import range_excess
from leakscope.models import VisionModel

__all__ = ["Undone", "before_layer", "input_of", "undo"]

_LARGEST: Final = 40_000_000
_WRONG: Final = 0.05
_RANGES: Final = {"tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0)}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """One image (C, H, W), pixels not yet clamped.

    ``condition`` is that of all that was undone; ``check`` how far off the image arrives at the layer again; ``excess``
    by how much it leaves [0, 1].
    """

    pixels: Tensor
    condition: float
    check: float
    excess: float


def before_layer(model: VisionModel, before: tuple[Link, ...], link: Link, a: Tensor) -> Undone:
    """The image whose input of ``link`` is ``a``, undoing the layers ``before`` it, last first."""
    found, condition = a, 1.0
    for one in reversed(before):
        found, more = undo(one, found)
        condition *= more
    pixels = found.reshape(model.input.shape) * model.std.double() + model.mean.double()
    check = relative(input_of(model, link.module, pixels) - a, a)
    excess = range_excess(pixels)
    if check > _WRONG or excess > _WRONG:
        raise NotApplicable(
            f"undoing what is before it is too unstable here: the picture leaves the pixel range by {excess:.2g} and "
            f"arrives at the layer {check:.1%} off."
        )
    return Undone(pixels=pixels, condition=condition, check=check, excess=excess)


def undo(link: Link, output: Tensor) -> tuple[Tensor, float]:
    """The input of one layer a ↦ σ(W a + b) for one image, and the condition number of W.

    Raises :class:`NotApplicable` where σ is not invertible or saturated, or W is not of full column rank.
    """
    if not link.activation.invertible:
        raise NotApplicable(f"the {link.activation.name} behind '{link.module}' loses what is below zero.")
    y = output.double().reshape(link.output)
    low, high = _RANGES.get(link.activation.name, (float("-inf"), float("inf")))
    if bool(((y <= low) | (y >= high)).any()):
        raise NotApplicable(f"the {link.activation.name} behind '{link.module}' is saturated.")
    y = link.activation.inverse(y)
    bias = link.layer.bias
    if bias is not None:
        bias = bias.detach().double()
        y = y - (bias if isinstance(link.layer, nn.Linear) else bias[:, None, None])
    matrix = _matrix(link)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    rank = numerical_rank(s, max(matrix.shape))
    if rank < matrix.shape[1]:
        raise NotApplicable(_too_narrow(link, matrix.shape[1], matrix.shape[0], rank))
    return (v.mT @ ((u.mT @ y.flatten()) / s)).reshape(link.input), float(s[0] / s[-1])


def input_of(model: VisionModel, name: str, pixels: Tensor) -> Tensor:
    """What the layer ``name`` takes when the model sees these pixels (C, H, W), flattened, in float64."""
    caught: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        caught.append(args[0].detach().double().flatten())

    handle = model.module.get_submodule(name).register_forward_pre_hook(note)
    try:
        with torch.no_grad(), model.mode(False):
            model(pixels[None].to(device=model.device, dtype=model.dtype))
    finally:
        handle.remove()
    return caught[0]


def _matrix(link: Link) -> Tensor:
    """The layer as a matrix, (outputs, inputs) of one image."""
    layer = link.layer
    weight = layer.weight.detach().double()
    if isinstance(layer, nn.Linear):
        return weight
    inputs, outputs = torch.Size(link.input).numel(), torch.Size(link.output).numel()
    if outputs < inputs:
        raise NotApplicable(_too_narrow(link, inputs, outputs, outputs))
    if inputs * outputs > _LARGEST:
        raise NotApplicable(f"'{link.module}' is too large to undo as a matrix of {outputs} × {inputs}.")
    every = torch.eye(inputs, dtype=torch.float64, device=weight.device).reshape(inputs, *link.input)
    columns = F.conv2d(every, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    return columns.flatten(1).mT


def _too_narrow(link: Link, inputs: int, outputs: int, rank: int) -> str:
    return f"'{link.module}' maps {inputs} numbers to {outputs} with rank at most {rank}: it cannot be undone alone."
