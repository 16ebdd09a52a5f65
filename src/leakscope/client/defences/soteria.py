"""Soteria: the representation before the classifier is perturbed where that hurts a reconstruction most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn

from leakscope.client.defences._parts import finite
from leakscope.client.registry import register_defence
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.types import Defence, Setting, Signal

__all__ = ["Soteria", "feature_sensitivity"]

_OFFSET: Final = 0.1
_CHUNK: Final = 64


@final
@register_defence("soteria", cites="sun2021")
@dataclass(frozen=True, slots=True, kw_only=True)
class Soteria(Defence):
    """Zeroes the classifier's gradient for the ``share`` of features whose loss hurts a reconstruction most.

    With r the classifier's input, the features with the smallest ‖∂r_i/∂x‖ / |r_i| are pruned from ∂L/∂W = δ rᵀ.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        finite("share", self.share, high=1.0)

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        head = setting.model.anatomy.classifier
        if head is None or head.weight not in signal:
            raise BadInput(f"Soteria protects the classifier's gradient, and {setting.model.name} sends none.")
        found = feature_sensitivity(setting.model, setting.images)
        pruned = found.topk(round(self.share * len(found)), largest=False).indices
        weight = signal[head.weight].clone()
        weight[:, pruned] = 0
        return {**signal, head.weight: weight}

    def as_seen(self, replayed: Signal, observed: Signal) -> Signal:
        """Columns of a matrix that arrive as zeros throughout are not matched."""
        seen = dict(replayed)
        for name, value in replayed.items():
            if name in observed and value.ndim == 2:
                seen[name] = value * observed[name].any(dim=0)
        return seen


def feature_sensitivity(model: VisionModel, images: Tensor) -> Tensor:
    """Σ_b ‖∂r_bi/∂x_b‖ / (|r_bi| + 0.1) for each feature i of the classifier's input r, (D,), in evaluation mode."""
    head = model.anatomy.classifier
    if head is None:
        raise BadInput(f"The classifier of {model.name} is not known.")
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(inputs[0])

    pixels = images.detach().clone().requires_grad_()
    hook = model.module.get_submodule(head.module).register_forward_pre_hook(catch)
    try:
        with model.mode(False), model.differentiable_twice():
            model(pixels)
    finally:
        hook.remove()
    features = caught[0]  # (B, D); in evaluation mode a row depends on its own image only
    norms: list[Tensor] = []
    for chunk in torch.eye(features.shape[1], dtype=features.dtype, device=features.device).split(_CHUNK):
        wanted = chunk[:, None, :].expand(-1, len(features), -1)  # one feature of every image at a time
        (slopes,) = torch.autograd.grad(features, pixels, wanted, retain_graph=True, is_grads_batched=True)
        norms.append(slopes.flatten(2).norm(dim=2))  # (chunk, B)
    return (torch.cat(norms).mT / (features.detach().abs() + _OFFSET)).sum(0)
