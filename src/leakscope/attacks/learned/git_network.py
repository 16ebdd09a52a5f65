"""The transcript of one model: shallow modules from the classifier's input down to the pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.analytic.chain import Activation
from leakscope.attacks.learned.hashing import Hash
from leakscope.attacks.learned.inverter import InverseNetwork
from leakscope.attacks.learned.reading import Reading
from leakscope.attacks.learned.scaling import Standardise, linear, ridge
from leakscope.attacks.learned.structure import Link, inputs_of
from leakscope.models import VisionModel

__all__ = ["INVERTIBLE", "GITModule", "GITNetwork", "Step"]

INVERTIBLE: Final = ("sigmoid", "tanh", "leaky")
"""The activations that are undone on a state."""
_SLICE: Final = 512
_EDGE: Final = 1e-3
"""Estimated outputs of an activation are kept this far from its bounds, where its inverse runs away."""
_HELD: Final = 0.1


@final
class GITModule(nn.Module):
    """[G_i, G_{i+1}, Â_i] ↦ Â_{i−1}: a linear map of the state, and a perceptron with one hidden layer for the rest.

    The linear map is solved for, not trained: ridge regression from the estimated state to the true one, which a server
    knows for its public images. The perceptron starts at zero, in units of what the linear map leaves over, so training
    starts from the best linear chain. Where the link's input has a closed form, both only add to it.
    """

    left: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, gradients: int, state: int, out: int, *, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.scale_gradients, self.scale_state = Standardise(gradients), Standardise(state)
        self.inner = linear(gradients + state, hidden, generator)
        self.outer = linear(hidden, out, generator, zero=True)
        self.register_buffer("weight", torch.zeros(out, state))
        self.register_buffer("bias", torch.zeros(out))
        self.register_buffer("left", torch.ones(out))

    def forward(self, gradients: Tensor, state: Tensor, closed: Tensor | None) -> Tensor:
        rows = torch.cat([self.scale_gradients(gradients), self.scale_state(state)], dim=1)
        found = F.linear(state, self.weight, self.bias) + self.left * self.outer(F.gelu(self.inner(rows)))
        return found if closed is None else closed + found

    def start(self, gradients: Tensor, state: Tensor, closed: Tensor | None, targets: Tensor) -> None:
        """Scales and the linear map, from training pairs; ``targets`` (N, out) are the true states below."""
        wanted = targets if closed is None else targets - closed
        self.scale_gradients.fit(gradients)
        self.scale_state.fit(state)
        weight, bias, _ = ridge(state, wanted, held=max(1, int(_HELD * len(targets))))
        self.weight.copy_(weight.T)
        self.bias.copy_(bias)
        self.left.copy_((F.linear(state, self.weight, self.bias) - wanted).std(0, correction=0))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The wiring of one module: the gradients it reads by name, the closed form of its link's input if there is one,
    the activation to undo on the state that comes from above, and how its output is hashed."""

    link: Link
    gradients: tuple[str, ...]
    closed: str | None
    undo: Activation | None
    out: Hash


@final
class GITNetwork(InverseNetwork):
    """The transcript of one model: ``steps`` from the classifier's input down to the pixels."""

    def __init__(
        self,
        model: VisionModel,
        plan: tuple[Step, ...],
        reads: Mapping[str, Reading],
        *,
        batch_size: int,
        hidden: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._model, self._plan, self._reads = (model,), plan, dict(reads)  # a tuple: not a submodule
        self._images = (batch_size, *model.input.shape)
        steps: list[GITModule] = []
        above = 0
        for step in plan:
            gradients = sum(reads[name].width for name in step.gradients)
            state = above + (reads[step.closed].width if step.closed else 0)
            steps.append(GITModule(gradients, state or gradients, step.out.width, hidden=hidden, generator=generator))
            above = step.out.width
        self.steps = nn.ModuleList(steps)

    def read(self, signal: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: reading(signal) for name, reading in self._reads.items()}

    def forward(self, rows: Mapping[str, Tensor]) -> Tensor:
        state: Tensor | None = None
        for step, module in zip(self._plan, self.steps, strict=True):
            state = module(*self._inputs(step, rows, state))
        assert state is not None
        return self._model[0].denormalise(state.view(-1, *self._images))

    def start(self, rows: Mapping[str, Tensor], images: Tensor) -> None:
        truth = self._true_states(images)
        state: Tensor | None = None
        with torch.no_grad():
            for step, module in zip(self._plan, self.steps, strict=True):
                assert isinstance(module, GITModule)
                inputs = self._inputs(step, rows, state)
                module.start(*inputs, truth[step.link.name])
                state = module(*inputs)

    def _inputs(
        self, step: Step, rows: Mapping[str, Tensor], state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(gradients, state, closed form) of one module."""
        gradients = torch.cat([rows[name] for name in step.gradients], dim=1)
        parts: list[Tensor] = [] if state is None else [_undone(state, step.undo)]
        if step.closed is not None:
            parts.append(rows[step.closed])
        base = rows[step.closed] if step.closed is not None and self._images[0] == 1 else None
        return gradients, torch.cat(parts, dim=1) if parts else gradients, base

    def _true_states(self, images: Tensor) -> dict[str, Tensor]:
        """The input of every link for training images (N, B, C, H, W), (N, width) each."""
        names = [step.link.name for step in reversed(self._plan)]
        found: dict[str, list[Tensor]] = {name: [] for name in names}
        for part in images.split(max(1, _SLICE // images.shape[1])):
            inputs = inputs_of(self._model[0], names, part.flatten(0, 1))
            for step in self._plan:
                found[step.link.name].append(step.out(inputs[step.link.name].reshape(len(part), -1)))
        return {name: torch.cat(parts) for name, parts in found.items()}

    def graph(self) -> list[tuple[str, str]]:
        """(module, what it reads → what it gives) from the head down, for people."""
        lines: list[tuple[str, str]] = []
        above = ""
        for place, step in enumerate(self._plan):
            undo = f"{step.undo.name}⁻¹ of " if step.undo is not None else ""
            parts = [f"G({name}) {self._reads[name].width}" for name in step.gradients]
            parts += [f"{undo}{above}"] if above else []
            parts += [f"closed form {self._reads[step.closed].width}"] if step.closed else []
            kept = step.out.width
            what = "pixels" if place == len(self._plan) - 1 else f"input of {step.link.name}"
            hashed = "" if step.out.size == kept else f", hashed from {step.out.size}"
            lines.append(
                (
                    step.link.name if place else f"bootstrap ({step.link.name})",
                    f"{' + '.join(parts)} → {what} {kept}{hashed}",
                )
            )
            above = f"{what} {kept}"
        return lines


def _undone(state: Tensor, activation: Activation | None) -> Tensor:
    """What went into the activation that made this state; estimates are kept off its bounds."""
    match activation.name if activation is not None else "":
        case "sigmoid":
            return torch.logit(state.clamp(_EDGE, 1 - _EDGE))
        case "tanh":
            return torch.atanh(state.clamp(-1 + _EDGE, 1 - _EDGE))
        case "leaky":
            assert activation is not None
            return activation.inverse(state)
        case _:
            return state
