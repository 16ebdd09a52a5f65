"""Multi-layer perceptrons of any widths."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import nn

from leakscope.errors import BadInput, UnknownName
from leakscope.models.blueprint import model

__all__ = ["MLP", "mlp"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "leaky": nn.LeakyReLU,
    "gelu": nn.GELU,
}


class MLP(nn.Sequential):
    """Linear layers with biases over the flattened image, an activation after each but the last.

    Logits (B, K) of (B, C, H, W). Weights start as torch's defaults.
    """

    def __init__(self, *, widths: tuple[int, ...], activation: str, num_classes: int, inputs: int) -> None:
        if activation not in _ACTIVATIONS:
            raise UnknownName("activation", activation, _ACTIVATIONS)
        if any(width < 1 for width in widths):
            raise BadInput(f"Hidden widths must be at least 1; got {list(widths)}.")
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for i, (before, after) in enumerate(pairwise((inputs, *widths)), start=1):
            layers[f"fc{i}"] = nn.Linear(before, after)
            layers[f"act{i}"] = _ACTIVATIONS[activation]()
        layers["head"] = nn.Linear((inputs, *widths)[-1], num_classes)
        super().__init__(layers)


@model("mlp")
def mlp(
    *,
    num_classes: int,
    image_size: int,
    channels: int,
    hidden: tuple[int, ...] = (256, 256),
    activation: str = "relu",
) -> nn.Module:
    """MLP over the flattened image; options as in mlp?hidden=512,128&activation=tanh (relu, sigmoid, leaky, gelu)."""
    inputs = channels * image_size * image_size
    return MLP(widths=hidden, activation=activation, num_classes=num_classes, inputs=inputs)
