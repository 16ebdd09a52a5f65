"""The client's half of a split model, in parts: what it makes of images on the way to the cut."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from leakscope.client.split import Split
from leakscope.errors import NotApplicable
from leakscope.models import VisionModel
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

    def __call__(self, pixels: Tensor, count: int | None = None) -> list[Tensor]:
        """[h_1, …, h_count], all by default, differentiable in the pixels (B, C, H, W); no part behind them is run.

        The model's weights take no part in the graph.
        """
        return _run(self.model, self.between, self.cut, pixels, len(self.shapes) if count is None else count)


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
    blocks = [block for block in model.anatomy.blocks if block in called]
    if len(blocks) > parts:
        blocks = list({block.rpartition(".")[0]: block for block in reversed(blocks)}.values())[
            ::-1
        ]  # each stage's first
    features = _run(model, tuple(blocks), protocol.cut, blank, len(blocks) + 1)
    # The first block may take the pixels themselves: nothing was done to them yet.
    first = bool(blocks) and features[0].shape == blank.shape and torch.equal(features[0], model.normalise(blank))
    between = tuple(blocks[1:] if first else blocks)
    return Front(
        model=model,
        between=between,
        cut=protocol.cut,
        shapes=tuple(tuple(h.shape[1:]) for h in (features[1:] if first else features)),
    )


def _run(model: VisionModel, between: tuple[str, ...], cut: str, pixels: Tensor, count: int) -> list[Tensor]:
    weights = {name: value.detach() for name, value in model.named_parameters()}
    modules = dict(model.named_modules())
    found: list[Tensor] = []

    def enter(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0])
        if len(found) == count:
            raise _Cut

    def leave(module: nn.Module, inputs: object, output: Tensor) -> None:
        found.append(output)
        raise _Cut

    with ExitStack() as hooks, model.mode(False), suppress(_Cut):
        for name in between[:count]:
            hooks.callback(modules[name].register_forward_pre_hook(enter).remove)
        if count > len(between):
            hooks.callback(modules[cut].register_forward_hook(leave).remove)
        model.functional(weights, {}, pixels)
    return found
