"""Look over a whole model: every layer by itself, layers among their kind, and the model against a reference."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from leakscope.lint.finding import Finding, Weights
from leakscope.lint.planted import DETECTORS
from leakscope.models import VisionModel
from leakscope.models.text import as_names

__all__ = ["lint"]

_OUT_OF_FAMILY: Final = 50.0
_HUGE: Final = 100.0
_CHANGED: Final = 20.0
_IDENTITIES: Final = frozenset({("timm.models.convit.GPSA", "v")})
"""Layers that an architecture starts as an identity, by the class they stand in: finding them so means nothing."""


def lint(model: VisionModel, *, reference: Mapping[str, Tensor] | None = None) -> tuple[Finding, ...]:
    """Everything in ``model`` that looks planted; nothing found is no proof that nothing is there.

    ``reference`` is a state the model should be close to: the one of an earlier round, or of another party.
    """
    found: list[Finding] = []
    layers = list(_layers(model))
    for layer in layers:
        found += [finding for detector in DETECTORS for finding in detector(layer)]
    found += _families(layers)
    found += _in_front(model)
    found += _statistics(model)
    if reference is not None:
        found += _against(model, reference)
    return tuple(found)


def _layers(model: VisionModel) -> Iterator[Weights]:
    head = model.anatomy.classifier
    heads = {head.module, *head.others} if head is not None else set[str]()
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) or not isinstance(weight, Tensor):
            continue
        rows = weight.detach().double().cpu().flatten(1)
        bias = module.bias
        yield Weights(
            name=f"{name}.weight" if name else "weight",
            module=name,
            rows=rows,
            bias=None if bias is None else bias.detach().double().cpu(),
            square=weight.shape[0] == weight.shape[1],
            classifier=name in heads,
            kernel=math.prod(weight.shape[2:]),
            starts_as_identity=(_class_of(model, name.rpartition(".")[0]), name.rpartition(".")[2]) in _IDENTITIES,
        )


def _class_of(model: VisionModel, name: str) -> str:
    found = type(model.module.get_submodule(name))
    return f"{found.__module__}.{found.__qualname__}"


def _families(layers: list[Weights]) -> Iterator[Finding]:
    """Layers of one role in different blocks are alike in size; a dead or an enormous one among them is odd."""
    families: dict[str, list[tuple[Weights, float]]] = defaultdict(list)
    for layer in layers:
        # σ√n: about 1 for the usual initialisations.
        gain = float(layer.rows.square().mean().sqrt()) * math.sqrt(layer.rows.shape[1])
        families[re.sub(r"\d+", "#", layer.name)].append((layer, gain))
        if gain > _HUGE:
            yield Finding(
                parameter=layer.name,
                kind="out-of-family weights",
                allows="Saturated units pass single images on and hide the others.",
                evidence=f"Its size σ√n is {gain:.3g}; initialised and trained layers stay near 1.",
                confidence="medium",
            )
    for members in families.values():
        usual = torch.tensor([gain for _, gain in members]).median().item()
        if len(members) < 3 or usual == 0:
            continue
        for layer, gain in members:
            if gain * _OUT_OF_FAMILY < usual or usual * _OUT_OF_FAMILY < gain <= _HUGE:
                how = "is zero" if gain == 0 else f"has size {gain:.2g}"
                yield Finding(
                    parameter=layer.name,
                    kind="out-of-family weights",
                    allows="A silenced or dominant block leads the image around the layers that would mix it.",
                    evidence=f"It {how}, where its {len(members) - 1} likes in other blocks have {usual:.2g}.",
                    confidence="medium",
                )


def _in_front(model: VisionModel) -> Iterator[Finding]:
    """A fully connected layer over all pixels of a network that goes on with convolutions or attention."""
    first = model.anatomy.first_layer
    if first is None:
        return
    modules = dict(model.named_modules())
    module = modules.get(first.module)
    pixels = math.prod(model.input.shape)
    spatial = [
        n for n, m in modules.items() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.MultiheadAttention)
    ]
    if isinstance(module, nn.Linear) and module.in_features == pixels and spatial:
        yield Finding(
            parameter=first.weight,
            kind="unexpected layer in front",
            allows="Its gradient is a weighted sum of whole images; where one image alone is active, it is that image.",
            evidence=f"All {pixels} pixels enter a fully connected layer before {as_names(spatial[:1])}.",
            confidence="medium",
        )


def _statistics(model: VisionModel) -> Iterator[Finding]:
    for name, buffer in model.named_buffers():
        if name.endswith("running_var") and bool((buffer < 0).any()):
            yield Finding(
                parameter=name,
                kind="impossible statistics",
                allows="The normalisation can be made to switch on or blow up single channels.",
                evidence="A variance is negative.",
                confidence="high",
            )


def _against(model: VisionModel, reference: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Tensors that the reference does not have, and those that moved far more than the others did."""
    state = model.state_dict()
    added = [name for name in state if name not in reference]
    gone = [name for name in reference if name not in state]
    reshaped = [n for n, v in state.items() if n in reference and reference[n].shape != v.shape]
    for names, what in ((added, "is not in"), (gone, "is missing against"), (reshaped, "has another shape than in")):
        for name in names:
            yield Finding(
                parameter=name,
                kind="another architecture",
                allows="Layers can be put in that keep images apart.",
                evidence=f"It {what} the reference.",
                confidence="high",
            )
    moved: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if name in reference and parameter.ndim >= 2 and name not in reshaped:
            old = reference[name].double()
            size = float(old.norm())
            if size:
                moved[name] = float((parameter.detach().double().cpu() - old).norm()) / size
    if len(moved) < 3:
        return
    usual = torch.tensor(list(moved.values())).median().item()
    for name, change in moved.items():
        if change > _CHANGED * usual and change > 0.5:
            yield Finding(
                parameter=name,
                kind="moved out of line",
                allows="One layer was rewritten while the others were trained, or left alone.",
                evidence=f"It moved by {change:.2g} of its size since the reference; the others by {usual:.2g}.",
                confidence="medium",
            )
