"""Hooks that write down one forward pass: who ran, what went in and out, who drew random numbers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["Pass", "catching", "is_active_dropout", "watched"]

_Identity = tuple[int, int, int]


@dataclass(slots=True)
class Pass:
    """One forward pass. ``inputs`` and ``outputs`` are those of modules that own parameters, by name."""

    modules: dict[str, nn.Module]
    answer: object = None
    called: list[str] = field(default_factory=list[str])
    inputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    outputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    taken: dict[str, _Identity] = field(default_factory=dict[str, _Identity])
    given: dict[str, _Identity] = field(default_factory=dict[str, _Identity])
    drew: set[str] = field(default_factory=set[str])

    def has_weight(self, name: str) -> bool:
        """Whether this module owns a parameter called ``weight``, as layers do."""
        return isinstance(self.modules[name]._parameters.get("weight"), Tensor)  # pyright: ignore[reportPrivateUsage]

    def of_kind(self, *kinds: type[nn.Module]) -> list[str]:
        """The names of modules of these kinds whose output was seen, in order of execution."""
        return [n for n in dict.fromkeys(self.called) if n in self.outputs and isinstance(self.modules[n], kinds)]

    def is_output(self, name: str, tensor: Tensor) -> bool:
        """Whether this tensor is that module's output, untouched: the same memory, in whatever shape."""
        return self.given.get(name) == _identity(tensor)

    def unwritten(self, name: str) -> bool:
        """Whether that module's output is still as it was given: in-place layers write into it."""
        return self.given[name] == _identity(self.outputs[name])

    def feeds(self) -> dict[str, str]:
        """Consumer → the producer whose output it took untouched."""
        producers = {identity: n for n, identity in self.given.items()}
        found = {n: producers.get(identity) for n, identity in self.taken.items()}
        return {n: p for n, p in found.items() if p is not None and p != n}


@contextmanager
def watched(module: nn.Module) -> Generator[Pass]:
    """Record the pass made inside (a module's last call counts); the hooks are gone afterwards."""
    seen = Pass(modules=dict(module.named_modules()))
    stack: list[tuple[Tensor, bool]] = []  # the generator's state before each running module, and whether a child drew

    def watch(name: str, m: nn.Module) -> list[RemovableHandle]:
        owns = any(True for _ in m.parameters(recurse=False))

        def enter(_: nn.Module, args: tuple[object, ...]) -> None:
            seen.called.append(name)
            if owns and args and isinstance(args[0], Tensor):
                seen.inputs[name], seen.taken[name] = args[0], _identity(args[0])
            stack.append((torch.get_rng_state(), False))

        def leave(_: nn.Module, _args: tuple[object, ...], output: object) -> None:
            # Multi-head attention answers with its output and its weights.
            first = output[0] if isinstance(output, tuple) and output else output
            if owns and isinstance(first, Tensor):
                seen.outputs[name], seen.given[name] = first, _identity(first)
            state, child_drew = stack.pop()
            drew = not torch.equal(state, torch.get_rng_state())
            if drew and not child_drew:
                seen.drew.add(name)
            if drew and stack:
                stack[-1] = (stack[-1][0], True)

        return [m.register_forward_pre_hook(enter), m.register_forward_hook(leave)]

    handles = [handle for name, m in seen.modules.items() for handle in watch(name, m)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def catching(module: nn.Module, names: Sequence[str]) -> Generator[dict[str, Tensor]]:
    """The inputs of the named submodules, filled in by hooks that are gone afterwards."""
    caught: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        modules = dict(module.named_modules()) if names else {}
        for name in names:

            def catch(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                caught[name] = inputs[0]

            hooks.callback(modules[name].register_forward_pre_hook(catch).remove)
        yield caught


def is_active_dropout(module: nn.Module) -> bool:
    """Whether this is a layer of a known stochastic kind, with a rate above zero.

    Known by type or by the name of its class, since timm's DropPath and torchvision's StochasticDepth are not imported
    for this; layers whose dropout happens inside a fused kernel are found by what they draw instead.
    """
    if isinstance(module, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)):
        return module.p > 0
    if isinstance(module, nn.RReLU):
        return module.lower != module.upper
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout > 0
    rate = {"DropPath": "drop_prob", "StochasticDepth": "p", "FeatureAlphaDropout": "p"}.get(type(module).__name__)
    return rate is not None and float(getattr(module, rate, 0) or 0) > 0


def _identity(tensor: Tensor) -> _Identity:
    """The memory a tensor lives in and how often it has been written to: in-place layers change what they are given."""
    return tensor.data_ptr(), tensor.numel(), tensor._version  # pyright: ignore[reportPrivateUsage]
