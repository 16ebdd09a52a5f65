"""The transcript of one model: shallow modules from the classifier's input down to the pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn

from leakscope.attacks.analytic.chain import Activation
from leakscope.attacks.learned.evidence import ConvEvidence
from leakscope.attacks.learned.git_module import GITModule, redone, undone
from leakscope.attacks.learned.hashing import Hash
from leakscope.attacks.learned.inverter import InverseNetwork
from leakscope.attacks.learned.reading import Reading
from leakscope.attacks.learned.structure import Link, inputs_of
from leakscope.models import VisionModel

__all__ = ["RESIDUAL", "GITNetwork", "Step"]

_SLICE: Final = 512
_MEASURED: Final = 2048
"""Pairs by which the errors of gradients are measured."""
RESIDUAL: Final = "residual"
"""The reading of ∂L/∂logits, for one image the gradient of the classifier's bias."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The wiring of one module: the gradients it reads by name, the closed form of its link's input if there is one,
    the activation to undo on the state that comes from above, and how its output is hashed. ``raw`` names the gradient
    that is weighed as evidence (:mod:`~leakscope.attacks.learned.evidence`), for convolutions whose output is known."""

    link: Link
    gradients: tuple[str, ...]
    closed: str | None
    undo: Activation | None
    out: Hash
    raw: str | None = None


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
        layers = dict(model.named_modules())
        self.evidence = nn.ModuleDict(
            {str(place): _evidence(layers[step.link.name], step) for place, step in enumerate(plan) if step.raw}
        )

    def read(self, signal: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: reading(signal) for name, reading in self._reads.items()}

    def forward(self, rows: Mapping[str, Tensor]) -> Tensor:
        state, delta = None, self._delta(rows)
        for place, (step, module) in enumerate(zip(self._plan, self.steps, strict=True)):
            assert isinstance(module, GITModule)
            believed = module(*self._inputs(step, rows, state))
            state, delta = self._weighed(place, believed, module.left, rows, state, delta)
        assert state is not None
        return self._model[0].denormalise(state.view(-1, *self._images))

    def start(self, rows: Mapping[str, Tensor], images: Tensor) -> None:
        truth = self._true_states(images)
        with torch.no_grad():
            state, delta = None, self._delta(rows)
            for place, (step, module) in enumerate(zip(self._plan, self.steps, strict=True)):
                assert isinstance(module, GITModule)
                inputs = self._inputs(step, rows, state)
                module.start(*inputs, truth[place])
                if step.raw is not None and state is not None and delta is not None:
                    some = slice(-_MEASURED, None)
                    part = {name: value[some] for name, value in rows.items()}
                    evidence = self.evidence[str(place)]
                    assert isinstance(evidence, ConvEvidence)
                    evidence.fit(truth[place][some], *self._found(step, part, state[some], delta[some]))
                believed = module(*inputs)
                state, delta = self._weighed(place, believed, module.left, rows, state, delta)

    def _delta(self, rows: Mapping[str, Tensor]) -> Tensor | None:
        """∂L/∂(input of the classifier), (N, D): what the first link below the head has come back to it."""
        head = self._model[0].anatomy.classifier
        if RESIDUAL not in rows or head is None:
            return None
        return rows[RESIDUAL] @ dict(self._model[0].named_parameters())[head.weight].detach()

    def _weighed(
        self,
        place: int,
        believed: Tensor,
        left: Tensor,
        rows: Mapping[str, Tensor],
        above: Tensor | None,
        delta: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The state with the link's gradient weighed in, and ∂L/∂state; as it was where there is no such evidence."""
        step = self._plan[place]
        if above is None:
            return believed, delta  # the classifier: its closed form is all there is to know
        if step.raw is None or delta is None:
            return believed, None
        evidence = self.evidence[str(place)]
        assert isinstance(evidence, ConvEvidence)
        states: list[Tensor] = []
        deltas: list[Tensor] = []
        with torch.no_grad():
            for start in range(0, len(believed), _SLICE):
                part = slice(start, start + _SLICE)
                found = self._found(step, {n: v[part] for n, v in rows.items()}, above[part], delta[part])
                states.append(evidence(believed[part], left, *found))
                deltas.append(evidence.below(found[1]))
        # Trained as if it were not there: what it changes is not differentiated.
        return believed + (torch.cat(states) - believed).detach(), torch.cat(deltas)

    def _found(
        self, step: Step, rows: Mapping[str, Tensor], above: Tensor, delta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(G, D, z) of a convolution: its gradient, what came back to its output, its output."""
        assert step.raw is not None
        assert step.undo is not None
        output = undone(above, step.undo)
        slope = step.undo.derivative(redone(output, step.undo))
        channels = dict(self._model[0].named_modules())[step.link.name].get_parameter("weight").shape[0]
        gradient = rows[step.raw].view(len(above), channels, -1)
        return gradient, (delta * slope).view(len(above), channels, -1), output

    def _inputs(
        self, step: Step, rows: Mapping[str, Tensor], state: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(gradients, state, closed form) of one module."""
        gradients = torch.cat([rows[name] for name in step.gradients], dim=1)
        parts: list[Tensor] = [] if state is None else [undone(state, step.undo)]
        if step.closed is not None:
            parts.append(rows[step.closed])
        base = rows[step.closed] if step.closed is not None and self._images[0] == 1 else None
        return gradients, torch.cat(parts, dim=1) if parts else gradients, base

    def _true_states(self, images: Tensor) -> list[Tensor]:
        """What every step should give for training images (N, B, C, H, W): its link's input, (N, width)."""
        names = list(dict.fromkeys(step.link.name for step in reversed(self._plan)))
        found: list[list[Tensor]] = [[] for _ in self._plan]
        for part in images.split(max(1, _SLICE // images.shape[1])):
            inputs = inputs_of(self._model[0], names, part.flatten(0, 1))
            for states, step in zip(found, self._plan, strict=True):
                states.append(step.out(inputs[step.link.name].reshape(len(part), -1)))
        return [torch.cat(states) for states in found]

    def graph(self) -> list[tuple[str, str]]:
        """(module, what it reads → what it gives) from the head down, for people."""
        lines: list[tuple[str, str]] = []
        above = ""
        for place, step in enumerate(self._plan):
            undo = f"{step.undo.name}⁻¹ of " if step.undo is not None else ""
            parts = [f"G({name}) {self._reads[name].width}" for name in step.gradients]
            parts += [f"{undo}{above}"] if above else []
            parts += [f"closed form {self._reads[step.closed].width}"] if step.closed else []
            parts += ["G = D U(a)ᵀ as evidence"] if step.raw else []
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


def _evidence(layer: nn.Module, step: Step) -> ConvEvidence:
    assert isinstance(layer, nn.Conv2d)
    return ConvEvidence(layer, step.link.input)
