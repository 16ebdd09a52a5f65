"""A plain network as a chain of links: linear layers and convolutions, each with at most one activation behind it.

Found by one forward pass of noise in evaluation mode, with hooks on every module that has no children. What went into
a layer must be, number for number, what came out of the one before: skip connections, pooling or anything else done
between modules breaks the chain and is said. Activations called as functions are recognised by their values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from leakscope.errors import NotApplicable
from leakscope.models import VisionModel
from leakscope.types import Observation

__all__ = ["IDENTITY", "Activation", "Chain", "Link", "find_chain", "refuse_random_masks", "whole_chain"]

_SEED: Final = 20250607
_PASSES: Final = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """σ, known through its outputs: ``slope`` is that of a leaky ReLU below zero (0 for ReLU itself)."""

    name: str
    slope: float = 0.0

    @property
    def invertible(self) -> bool:
        """Whether every output belongs to one input only."""
        return self.name != "relu"

    def derivative(self, output: Tensor, *, threshold: float = 0.0) -> Tensor:
        """σ′(z) as a function of σ(z). A ReLU's output counts as zero up to ``threshold`` times the largest."""
        match self.name:
            case "sigmoid":
                return output * (1 - output)
            case "tanh":
                return 1 - output.square()
            case "relu":
                return (output > threshold * output.abs().max()).to(output.dtype)
            case "leaky":
                return torch.where(output > 0, torch.ones_like(output), torch.full_like(output, self.slope))
            case _:
                return torch.ones_like(output)

    def inverse(self, output: Tensor) -> Tensor:
        """z with σ(z) = ``output``; for a ReLU only where it is positive. Outputs out of range go to its edge."""
        edge = torch.finfo(output.dtype).eps
        match self.name:
            case "sigmoid":
                return torch.logit(output, eps=edge)
            case "tanh":
                return torch.atanh(output.clamp(-1 + edge, 1 - edge))
            case "leaky":
                return torch.where(output > 0, output, output / self.slope)
            case _:
                return output


IDENTITY: Final = Activation(name="identity")
_FUNCTIONS: Final[tuple[tuple[Activation, Callable[[Tensor], Tensor]], ...]] = (
    (Activation(name="relu"), F.relu),
    (Activation(name="sigmoid"), torch.sigmoid),
    (Activation(name="tanh"), torch.tanh),
    (Activation(name="leaky", slope=0.01), F.leaky_relu),
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One layer, a ↦ σ(W a + b): its module, its parameters by name, the shapes of one sample before and after."""

    module: str
    weight: str
    bias: str | None
    layer: nn.Linear | nn.Conv2d
    input: tuple[int, ...]
    output: tuple[int, ...]
    activation: Activation = IDENTITY


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Links in order of execution. ``broken`` says why the chain ends before the logits; ``None`` if it does not."""

    links: tuple[Link, ...]
    broken: str | None


def whole_chain(observation: Observation) -> Chain:
    """The chain from the pixels to the logits, or :class:`NotApplicable` with the layer that breaks it."""
    refuse_random_masks(observation)
    chain = find_chain(observation.model)
    if chain.broken is not None:
        raise NotApplicable(
            f"{observation.model.name} is no plain chain of linear layers, convolutions and activations: {chain.broken}"
        )
    return chain


def refuse_random_masks(observation: Observation) -> None:
    """Raise where the client ran with dropout active."""
    protocol, stochastic = observation.protocol, observation.model.anatomy.stochastic
    if stochastic and getattr(protocol, "stochastic", False) and getattr(protocol, "mode", "train") == "train":
        raise NotApplicable(f"The client ran with '{stochastic[0]}' active: its random mask is not known.")


def find_chain(model: VisionModel) -> Chain:
    """Run the model once and follow its layers from the pixels on. The model comes back as it was."""
    noise = torch.randn((1, *model.input.shape), generator=torch.Generator().manual_seed(_SEED))
    value = noise.to(device=model.device, dtype=model.dtype)
    with _written(model.module) as calls, model.mode(False), torch.no_grad():
        logits = model.module(value.clone())
    parameters = {name for name, _ in model.named_parameters()}
    links: list[Link] = []
    for name, module, taken, given in calls:
        if not _same(value, taken):
            if not _follow(links, value, taken):
                return Chain(links=tuple(links), broken=f"what reaches '{name}' is not what the layer before it gave.")
        elif isinstance(module, _PASSES):
            if not _same(taken, given):
                return Chain(links=tuple(links), broken=f"'{name}' changes what it is given.")
            value = given
            continue
        broken = _join(links, name, module, taken, given, parameters)
        if broken is not None:
            return Chain(links=tuple(links), broken=broken)
        value = given
    if not _same(value, logits) or not links:
        return Chain(links=tuple(links), broken="the logits are not what the last layer gave.")
    return Chain(links=tuple(links), broken=None)


def _join(
    links: list[Link], name: str, module: nn.Module, taken: Tensor, given: Tensor, parameters: set[str]
) -> str | None:
    """Add this module to the chain; returns why it cannot be."""
    kind = type(module).__name__
    activation = _activation(module)
    if activation is not None:
        if not links or links[-1].activation != IDENTITY:
            return f"'{name}' ({kind}) does not follow a layer with weights."
        links[-1] = replace(links[-1], activation=activation)
        return None
    if not isinstance(module, (nn.Linear, nn.Conv2d)) or _overridden(module):
        return f"'{name}' is a {kind}."
    if isinstance(module, nn.Linear) and taken.ndim != 2:
        return f"'{name}' ({kind}) is applied along one axis of {tuple(taken.shape[1:])}."
    if isinstance(module, nn.Conv2d) and module.padding_mode != "zeros":
        return f"'{name}' ({kind}) pads with '{module.padding_mode}', not with zeros."
    weight, bias = (f"{name}.{part}" if name else part for part in ("weight", "bias"))
    if weight not in parameters or any(link.weight == weight for link in links):
        return f"'{name}' ({kind}) shares its weights with another layer or runs twice."
    shapes = tuple(taken.shape[1:]), tuple(given.shape[1:])
    names = {"module": name, "weight": weight, "bias": bias if module.bias is not None else None}
    links.append(Link(**names, layer=module, input=shapes[0], output=shapes[1]))  # pyright: ignore[reportArgumentType]
    return None


def _follow(links: list[Link], value: Tensor, taken: Tensor) -> bool:
    """Whether an activation called as a function lies between two layers; it joins the chain then."""
    if not links or links[-1].activation != IDENTITY:
        return False
    for activation, function in _FUNCTIONS:
        if _same(function(value), taken):
            links[-1] = replace(links[-1], activation=activation)
            return True
    return False


def _activation(module: nn.Module) -> Activation | None:
    if isinstance(module, nn.LeakyReLU) and module.negative_slope > 0:
        return Activation(name="leaky", slope=module.negative_slope)
    for kind, name in ((nn.ReLU, "relu"), (nn.Sigmoid, "sigmoid"), (nn.Tanh, "tanh")):
        if isinstance(module, kind):
            return Activation(name=name)
    return None


def _overridden(module: nn.Module) -> bool:
    kind = nn.Linear if isinstance(module, nn.Linear) else nn.Conv2d
    return type(module).forward is not kind.forward


def _same(one: Tensor, other: Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(one.flatten(), other.flatten())


_Call = tuple[str, nn.Module, Tensor, Tensor]


@contextmanager
def _written(module: nn.Module) -> Generator[list[_Call]]:
    """The calls made inside to modules without children: name, module, copies of input and output."""
    calls: list[_Call] = []
    inputs: list[Tensor] = []

    def watch(name: str, leaf: nn.Module) -> list[RemovableHandle]:
        def enter(_: nn.Module, args: tuple[object, ...]) -> None:
            # Copies: a layer that works in place writes over its input.
            inputs.append(args[0].clone() if args and isinstance(args[0], Tensor) else torch.empty(0))

        def leave(_: nn.Module, _args: tuple[object, ...], output: object) -> None:
            calls.append((name, leaf, inputs.pop(), output.clone() if isinstance(output, Tensor) else torch.empty(0)))

        return [leaf.register_forward_pre_hook(enter), leaf.register_forward_hook(leave)]

    leaves = [(name, m) for name, m in module.named_modules() if next(m.children(), None) is None]
    handles = [handle for name, leaf in leaves for handle in watch(name, leaf)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
