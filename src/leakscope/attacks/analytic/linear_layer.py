"""The input of a linear layer with bias, from its gradient, and from there back to the pixels.

For one sample h = W a + b has ∂L/∂W = δ aᵀ and ∂L/∂b = δ, so **a = (∂L/∂W)ᵀ ∂L/∂b / ‖∂L/∂b‖²**, exactly, whatever
follows (Geiping et al. 2020, Proposition 3.1). Everything before that layer which can be undone then is: flattening,
invertible activations, linear layers and convolutions of full column rank. The first layer of a network on flattened
pixels takes the image itself.

Two checks need no truth: ∂L/∂W has rank one and equals δ aᵀ (several samples would raise its rank), and the picture,
sent through the model, arrives at the layer as a.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import nn

from leakscope.attacks.analytic._one_image import Finding, finish, gradient, refuse_batches
from leakscope.attacks.analytic._undo import before_layer
from leakscope.attacks.analytic.chain import Link, find_chain, refuse_random_masks
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import relative
from leakscope.types import Callback, Observation, Reconstruction

__all__ = ["LinearLayer", "linear_layer"]

_WRONG: Final = 0.05


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayer:
    """Read off the input of the first linear layer with bias and undo what stands before it; see the module."""

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        started = time.perf_counter()
        refuse_batches(observation)
        refuse_random_masks(observation)
        found = find_chain(observation.model)
        reasons: list[str] = []
        for index, link in enumerate(found.links):
            if not isinstance(link.layer, nn.Linear):
                continue
            try:
                return finish(observation, _recover(observation, found.links[:index], link), started)
            except NotApplicable as reason:
                reasons.append(f"'{link.module}': {reason}")
        if reasons:
            raise NotApplicable("No linear layer gives the image. " + " ".join(reasons))
        last = f": {found.broken}" if found.broken else "."
        raise NotApplicable(f"No linear layer is reached from the pixels layer by layer{last}")


@register_attack(
    "linear-layer",
    cites="geiping2020",
    leaky=Leaky(
        model={"name": "leakscope:mlp?hidden=64&activation=tanh", "image_size": 16, "num_classes": 10},
        psnr=60,
    ),
)
def linear_layer() -> LinearLayer:
    """The input of a linear layer with bias stands in its gradient; what is before it is undone. A single image."""
    return LinearLayer()


def _recover(observation: Observation, before: tuple[Link, ...], link: Link) -> Finding:
    """The image from this layer's gradient, undoing the layers ``before`` it, last first."""
    if link.bias is None:
        raise NotApplicable("it has no bias, so its gradient gives its input only up to scale.")
    weight = gradient(observation, link.weight, "the linear layer")  # (F', F)
    delta = gradient(observation, link.bias, "the linear layer's bias")  # (F',)
    a = weight.mT @ delta / delta.square().sum()
    residual = relative(weight - torch.outer(delta, a), weight)
    if residual > _WRONG:
        raise NotApplicable(
            f"its gradient is not of rank one: {residual:.0%} of it is left over, so more than one sample was summed."
        )
    found = before_layer(observation.model, before, link, a)
    undone = [one.module for one in before]
    evidence: dict[str, object] = {
        "layer": link.module,
        "undone": undone,
        "rank": 1,
        "condition": found.condition,
        "self-check": found.check,
        "residual": residual,
        "excess": found.excess,
    }
    through = f", undoing {len(undone)} layers before it" if undone else ""
    message = f"The picture is the input of '{link.module}'{through}."
    return Finding(pixels=found.pixels, energy=max(found.check, residual), evidence=evidence, message=message)
