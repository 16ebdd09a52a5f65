"""Whether an update belongs to a model at all, and what of it an attacker works with."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from leakscope.capture.update import Update
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.models.text import as_names

__all__ = ["changes", "model_at", "structure_problems", "targets"]

_COUNTER: Final = "num_batches_tracked"
# Between the weights before and after a round of training the cosine is close to 1; between weights and a gradient
# or a delta it is close to 0.
_SAME: Final = 0.5


def structure_problems(update: Update, model: VisionModel) -> list[str]:
    """Sentences on what keeps ``update`` from being one of ``model``: names, shapes, types, NaN, a wrong ``kind``."""
    state = model.state_dict()
    problems = _misfits("sent", update.sent, state)
    if update.received:
        problems += _misfits("received", update.received, state)
        lacking = [name for name in state if name not in update.received and not name.endswith(_COUNTER)]
        if lacking:
            problems.append(f"The received model lacks {as_names(lacking)}.")
    parameters = [name for name, _ in model.named_parameters()]
    if not any(name in update.sent for name in parameters):
        problems.append(f"No parameter of {model.name} is in what was sent.")
    if not problems:
        problems += _mislabelled(update, state, parameters)
    return problems


def model_at(update: Update, model: VisionModel) -> VisionModel:
    """A copy of ``model`` with the weights that the server had sent out; the model itself where none were captured."""
    if not update.received:
        return model
    placed = copy.deepcopy(model)
    state = placed.state_dict()
    counters = {name: value for name, value in state.items() if name.endswith(_COUNTER)}
    placed.load_state_dict({**counters, **{n: v.to(state[n].dtype) for n, v in update.received.items()}})
    return placed


def changes(update: Update, model: VisionModel) -> dict[str, Tensor]:
    """The gradient or the delta of every parameter that was sent, in the model's type and order.

    New weights become deltas to what the server had sent out. Raises :class:`BadInput` for an update that does not
    fit the model.
    """
    refuse_misfits(update, model)
    start = update.received or model.state_dict()
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if name in update.sent:
            value = update.sent[name].to(parameter)
            found[name] = value - start[name].to(parameter) if update.kind == "weights" else value
    return found


def targets(update: Update, model: VisionModel) -> dict[str, Tensor]:
    """The new value of every buffer that was sent, in the model's order."""
    refuse_misfits(update, model)
    start = update.received or model.state_dict()
    found: dict[str, Tensor] = {}
    for name, buffer in model.named_buffers():
        if name in update.sent:
            value = update.sent[name].to(buffer)
            found[name] = value + start[name].to(buffer) if update.kind == "delta" and name in start else value
    return found


def refuse_misfits(update: Update, model: VisionModel) -> None:
    """Raise for an update that :func:`structure_problems` finds fault with."""
    problems = structure_problems(update, model)
    if problems:
        raise BadInput(f"The update does not fit {model.name}. {' '.join(problems)}")


def _misfits(part: str, given: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    problems: list[str] = []
    unknown = [name for name in given if name not in state]
    if unknown:
        problems.append(f"The model has no {as_names(unknown)}, which the {part} tensors hold.")
    known = [name for name in given if name in state]
    shapes = [
        f"{name} is {tuple(given[name].shape)}, the model's {tuple(state[name].shape)}"
        for name in known
        if given[name].shape != state[name].shape
    ]
    if shapes:
        problems.append(f"Wrong shapes among the {part} tensors: {as_names(shapes)}.")
    # Counters may arrive as fractions: Flower averages them like everything else.
    kinds = [n for n in known if state[n].is_floating_point() and not given[n].is_floating_point()]
    if kinds:
        listed = as_names([f"{name} ({given[name].dtype})" for name in kinds])
        problems.append(f"Wrong types among the {part} tensors: {listed}.")
    broken = [n for n, v in given.items() if v.is_floating_point() and not bool(torch.isfinite(v).all())]
    if broken:
        problems.append(f"NaN or infinite values in the {part} tensors: {as_names(broken)}.")
    return problems


def _mislabelled(update: Update, state: Mapping[str, Tensor], parameters: list[str]) -> list[str]:
    """Weights that are called a delta would look like an enormous step; a delta called weights like another model."""
    names = [name for name in parameters if name in update.sent]
    start = update.received or state
    sent, old = _flat(update.sent[n] for n in names), _flat(start[n] for n in names)
    if not bool(old.any()) or not bool(sent.any()):
        return []
    alike = float(sent @ old / (sent.norm() * old.norm()))
    if update.kind == "weights" and alike < _SAME:
        return [
            f"What was sent is called weights, but it is not near the weights before (cosine {alike:.2f}): it is a "
            "delta or a gradient, or the tensors are in the wrong order, or it belongs to another model."
        ]
    if update.kind != "weights" and alike > 1 - _SAME / 10:
        return [f"What was sent is called a {update.kind}, but it looks like the weights (cosine {alike:.3f})."]
    return []


def _flat(values: Iterable[Tensor]) -> Tensor:
    return torch.cat([value.double().flatten() for value in values])
