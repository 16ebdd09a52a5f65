"""LoRA: the client trains thin adapters beside frozen layers, and only they travel (Hu et al. 2022)."""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork

__all__ = ["LoraLinear", "add_lora"]


@final
class LoraLinear(nn.Linear):
    """y = W x + b + (α/r) B A x, with A (r, in) and B (out, r).

    Still an ``nn.Linear`` whose weight and bias keep their names, so that a model's anatomy is found as before.
    """

    def __init__(self, linear: nn.Linear, *, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias  # the bias may be None
        self.scale = alpha / rank
        bound = 1 / math.sqrt(linear.in_features)
        drawn = torch.rand((rank, linear.in_features), generator=generator) * 2 * bound - bound
        self.lora_A = nn.Parameter(drawn.to(linear.weight))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, rank).to(linear.weight))

    def forward(self, input: Tensor) -> Tensor:
        """The layer's output and the adapter's."""
        return super().forward(input) + self.scale * F.linear(F.linear(input, self.lora_A), self.lora_B)


def add_lora(
    model: VisionModel, layers: Sequence[str], *, rank: int = 4, alpha: float | None = None, generator: torch.Generator
) -> VisionModel:
    """A copy of the model with adapters beside the linear layers whose names match ``layers``; all else is frozen.

    B starts at zero, as in the paper: until a first round has moved it, A has no gradient. ``alpha`` is the rank by
    default. A layer that is not a plain ``nn.Linear``, or is read past its ``forward``, as the projection inside
    torch's attention is, takes no adapter.
    """
    if rank < 1:
        raise BadInput(f"rank is {rank}; it must be at least 1.")
    module = copy.deepcopy(model.module)
    inside = {f"{name}.out_proj" for name, child in module.named_modules() if isinstance(child, nn.MultiheadAttention)}
    linears = {n: m for n, m in module.named_modules() if type(m) is nn.Linear and n not in inside}
    chosen = [name for name in linears if any(fnmatchcase(name, pattern) for pattern in layers)]
    for pattern in layers:
        if not any(fnmatchcase(name, pattern) for name in linears):
            near = difflib.get_close_matches(pattern, linears, n=3, cutoff=0.2) or list(linears)[:3]
            listed = f"Nearest: {', '.join(near)}" if near else "It has none"
            raise BadInput(f"'{pattern}' matches no plain linear layer of {model.name}. {listed}.")
    if not chosen:
        raise BadInput("No layer was named: LoRA needs at least one linear layer.")
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for name in chosen:
        adapter = LoraLinear(linears[name], rank=rank, alpha=alpha or rank, generator=fork(generator, f"lora/{name}"))
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, adapter.train(linears[name].training))
    return VisionModel(
        module,
        input=model.input,
        mean=model.mean.flatten().tolist(),
        std=model.std.flatten().tolist(),
        name=f"{model.name}+lora{rank}",
    )
