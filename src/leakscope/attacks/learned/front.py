"""The client's half of a split model, in parts: what it makes of images on the way to the cut."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from leakscope.client.split import Split
from leakscope.errors import NotApplicable
from leakscope.models import VisionModel
from leakscope.models.watch import catching
from leakscope.types import ClientProtocol

__all__ = ["Front", "front_of"]


class _Cut(Exception):
    """The forward pass has gone far enough."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """h_1 … h_K for images: the inputs of the modules ``between``, in order, and at last the output of ``cut``."""

    model: VisionModel
    between: tuple[str, ...]
    cut: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What each part ends with, for people."""
        return (*(f"input of {name}" for name in self.between), self.cut)

    def __call__(self, pixels: Tensor) -> list[Tensor]:
        """[h_1, …, h_K], differentiable in the pixels (B, C, H, W); the model's weights take no part in the graph."""
        return _run(self.model, self.between, self.cut, pixels)


def front_of(model: VisionModel, protocol: ClientProtocol, *, parts: int) -> Front:
    """The front of ``model`` up to the client's cut: block by block, or stage by stage where that is over ``parts``.

    ResNet-18 is cut into its stem and its blocks, ResNet-50 into its stem and four stages, a plain network into layers.
    """
    if not isinstance(protocol, Split):
        raise NotApplicable(
            f"Feature inversion needs a client that sends features (Split), not {type(protocol).__name__}."
        )
    if protocol.mode != "eval" or model.anatomy.mixes_in_evaluation:
        raise NotApplicable(
            "Feature inversion is for clients in evaluation mode, where each image's features are its own."
        )
    blank = torch.zeros((1, *model.input.shape), device=model.device, dtype=model.dtype)
    called = protocol.called(model)
    own = {protocol.cut, *(name for name in called if name.startswith(f"{protocol.cut}."))}
    blocks = [block for block in model.anatomy.blocks if block in called and block not in own - {protocol.cut}]
    if len(blocks) > parts:
        blocks = list({block.rpartition(".")[0]: block for block in reversed(blocks)}.values())[
            ::-1
        ]  # each stage's first
    features = _run(model, tuple(blocks), protocol.cut, blank)
    # The first block may take the pixels themselves: nothing was done to them yet.
    first = bool(blocks) and features[0].shape == blank.shape and torch.equal(features[0], model.normalise(blank))
    between = tuple(blocks[1:] if first else blocks)
    return Front(
        model=model,
        between=between,
        cut=protocol.cut,
        shapes=tuple(tuple(h.shape[1:]) for h in (features[1:] if first else features)),
    )


def _run(model: VisionModel, between: tuple[str, ...], cut: str, pixels: Tensor) -> list[Tensor]:
    weights = {name: value.detach() for name, value in model.named_parameters()}
    last: list[Tensor] = []

    def stop(module: nn.Module, inputs: object, output: Tensor) -> None:
        last.append(output)
        raise _Cut

    hook = dict(model.named_modules())[cut].register_forward_hook(stop)
    try:
        with catching(model.module, between) as caught, model.mode(False), suppress(_Cut):
            model.functional(weights, {}, pixels)
    finally:
        hook.remove()
    return [*(caught[name] for name in between), last[0]]
