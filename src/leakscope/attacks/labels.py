"""Label sources: what an optimisation attack takes the labels to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from leakscope.client.gradient_view import as_gradient
from leakscope.errors import NotApplicable, UnknownName
from leakscope.functional import labels as rules
from leakscope.models import Classifier
from leakscope.types import Knows, Observation

__all__ = [
    "LABEL_RULES",
    "UNKNOWN_LABEL",
    "LabelGuess",
    "LabelSource",
    "idlg",
    "joint",
    "known_or_recovered",
    "recover_labels",
]

UNKNOWN_LABEL: Final = -1
"""Stands for the class of an image where nothing says what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelGuess:
    """``values`` are (B,) class indices or (B, M, 5) boxes, or (B, K) logits to be optimised with the images."""

    values: Tensor
    source: str

    @property
    def soft(self) -> bool:
        return self.values.ndim == 2


LabelSource = Callable[[Observation, torch.Generator], LabelGuess]


def known_or_recovered(observation: Observation, generator: torch.Generator) -> LabelGuess:
    """The labels if this server knows them; else read off the gradient by the first rule that applies."""
    if observation.labels is not None:
        return LabelGuess(values=observation.labels, source="known")
    if not getattr(observation.protocol, "uses_labels", True):  # features: no label plays a part in them
        return LabelGuess(values=torch.full((observation.batch_size,), UNKNOWN_LABEL), source="not used")
    if observation.input.boxes:  # no rule reads boxes off a gradient
        observation.require(Knows.LABELS)
    reasons: list[str] = []
    for name in ("counting", "idlg", "gradinversion"):
        try:
            return LabelGuess(values=recover_labels(observation, name), source=name)
        except NotApplicable as reason:
            reasons.append(f"{name}: {reason}")
    raise NotApplicable("The labels are hidden and no rule recovers them. " + " ".join(reasons))


def idlg(observation: Observation, generator: torch.Generator) -> LabelGuess:
    """iDLG's rule, whether or not the labels are known."""
    return LabelGuess(values=recover_labels(observation, "idlg"), source="idlg")


def joint(observation: Observation, generator: torch.Generator) -> LabelGuess:
    """Soft labels from N(0, 1) logits, optimised together with the images (DLG)."""
    if observation.input.boxes:
        raise NotApplicable(
            "A detector's labels are boxes, which cannot be optimised together with the images: which prediction "
            "answers for a box jumps. Choose an attack that takes known labels."
        )
    shape = (observation.batch_size, observation.input.num_classes)
    return LabelGuess(values=torch.randn(shape, generator=generator), source="joint")


def recover_labels(observation: Observation, rule: str = "counting") -> Tensor:
    """The batch's labels, (B,), read off the gradient of the classifier by ``rule``; see :data:`LABEL_RULES`.

    A weight delta is taken for a gradient first (:func:`as_gradient`): after several steps the rules only nearly hold.
    """
    if rule not in LABEL_RULES:
        raise UnknownName("label rule", rule, LABEL_RULES)
    return LABEL_RULES[rule](as_gradient(observation)).to(observation.model.device)


def _head(observation: Observation) -> Classifier:
    head = observation.model.anatomy.classifier
    if head is None:
        raise NotApplicable(f"The classifier of {observation.model.name} is not known.")
    if head.weight not in observation.signal:
        raise NotApplicable(f"The gradient of the classifier '{head.weight}' is not in the signal.")
    return head


def _idlg(observation: Observation) -> Tensor:
    weight = _head(observation).weight
    if observation.batch_size != 1:
        raise NotApplicable(f"iDLG's rule holds for one sample; this batch has {observation.batch_size}.")
    return rules.idlg(observation.signal[weight].flatten(1))


def _minimum(observation: Observation) -> Tensor:
    weight = _head(observation).weight
    return rules.minimum_rule(observation.signal[weight].flatten(1), observation.batch_size)


def _counting(observation: Observation) -> Tensor:
    head = _head(observation)
    weight, bias = head.weight, head.bias
    if bias is None or bias not in observation.signal:
        raise NotApplicable("Counting needs the gradient of the classifier's bias, which is not in the signal.")
    if head.others:
        raise NotApplicable("Counting needs logits from one linear layer; this model averages several heads.")
    size = observation.batch_size
    scale = 1 / size if getattr(observation.protocol, "reduction", "mean") == "sum" else 1.0
    parameters = dict(observation.model.named_parameters())
    return rules.counting(
        observation.signal[weight].flatten(1) * scale,
        observation.signal[bias] * scale,
        parameters[weight].detach().flatten(1),
        parameters[bias].detach(),
        size,
    )


LABEL_RULES: Final[Mapping[str, Callable[[Observation], Tensor]]] = {
    "counting": _counting,
    "gradinversion": _minimum,
    "idlg": _idlg,
}
