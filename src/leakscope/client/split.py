"""Split: the client runs the first part of the network and sends what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor, nn

from leakscope.client.precision import Precision, check_precision, rounded
from leakscope.errors import BadInput, UnknownName
from leakscope.models import VisionModel
from leakscope.random import global_draws
from leakscope.types import Signal

__all__ = ["Split"]


class _Cut(Exception):
    """The forward pass has gone far enough."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """h = f_{≤cut}(x): the features at the output of the module named ``cut``, sent under that name.

    Split inference in ``mode="eval"``, the forward half of split learning in ``"train"``. No label plays a part.
    ``stochastic`` and ``precision`` are as for :class:`FedSGD`.
    """

    cut: str
    mode: Literal["train", "eval"] = "eval"
    stochastic: bool = False
    precision: Precision = "full"

    def __post_init__(self) -> None:
        if not self.cut:
            raise BadInput("cut is empty; it must be the name of the module after which the client stops.")
        if self.mode not in ("train", "eval"):
            raise BadInput(f"mode is '{self.mode}'; accepted: 'train' or 'eval'.")
        check_precision(self.precision)

    @property
    def uses_labels(self) -> bool:
        """Whether what is sent depends on the labels."""
        return False

    def replay(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        """The features of these pixels, {cut: (B, …)}; the labels are not looked at."""
        modules = dict(model.named_modules())
        if self.cut not in modules:
            raise UnknownName(f"module of {model.name}", self.cut, (name for name in modules if name))
        caught: list[Tensor] = []

        def catch(module: nn.Module, inputs: object, output: object) -> None:
            if not isinstance(output, Tensor):
                raise BadInput(f"'{self.cut}' gives a {type(output).__name__}, not a tensor. Cut at another module.")
            caught.append(output)
            raise _Cut

        buffers = {n: b.clone() for n, b in model.named_buffers()} if self.mode == "train" else {}
        stochastic = self.stochastic and generator is not None
        hook = modules[self.cut].register_forward_hook(catch)
        try:
            draws = nullcontext() if generator is None else global_draws(generator)
            with draws, model.mode(self.mode == "train", stochastic=stochastic), torch.set_grad_enabled(create_graph):
                model.functional({}, buffers, images)
        except _Cut:
            pass
        finally:
            hook.remove()
        if not caught:
            raise BadInput(f"The forward pass of {model.name} never calls '{self.cut}'. Cut at another module.")
        return {self.cut: rounded(caught[0], self.precision)}

    def called(self, model: VisionModel) -> list[str]:
        """The modules that begin before these features are there, in order: the more, the deeper the cut."""
        order: list[str] = []

        def note(name: str) -> Callable[[nn.Module, tuple[object, ...]], None]:
            return lambda module, inputs: order.append(name)

        blank = torch.zeros((1, *model.input.shape), device=model.device, dtype=model.dtype)
        hooks = [module.register_forward_pre_hook(note(name)) for name, module in model.named_modules() if name]
        try:
            replace(self, mode="eval", stochastic=False).replay(model, blank, torch.zeros(1, device=model.device))
        finally:
            for hook in hooks:
                hook.remove()
        return order
