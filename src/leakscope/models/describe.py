"""A model's anatomy as rows for people: the table of ``leakscope describe MODEL``."""

from __future__ import annotations

from collections import Counter

from leakscope.models.anatomy import Anatomy
from leakscope.models.text import as_names
from leakscope.models.vision_model import VisionModel

__all__ = ["describe"]

_UNKNOWN = "not known"


def describe(model: VisionModel) -> list[tuple[str, str]]:
    """(label, value) rows, in reading order; what does not apply is left out, what is not known says so."""
    a = model.anatomy
    rows = [
        ("model", model.name),
        ("family", a.family),
        ("input", " × ".join(map(str, model.input.shape)) + " pixels in [0, 1]"),
        ("classes", str(model.input.num_classes)),
        ("parameters", f"{sum(p.numel() for p in model.parameters()):,}"),
        ("mean, std", f"{_numbers(model.mean.flatten().tolist())}, {_numbers(model.std.flatten().tolist())}"),
        ("first layer", a.first_layer.weight + _bias(a.first_layer.bias) if a.first_layer else _UNKNOWN),
        ("classifier", _UNKNOWN),
    ]
    if a.classifier is not None:
        scale = "" if a.classifier.scale == 1 else f", one of {1 + len(a.classifier.others)} averaged heads"
        rows[-1] = ("classifier", a.classifier.weight + _bias(a.classifier.bias) + scale)
    if (patch := a.patch_embedding) is not None:
        kind = "linear" if patch.linear else "not linear in the pixels"
        text = f"{patch.weight}{_bias(patch.bias)}, {_by(patch.patch)} px patches, {_by(patch.grid)} grid, {kind}"
        rows.append(("patch embedding", text))
    if (position := a.position_embedding) is not None:
        kind = "learnable" if position.learnable else "fixed"
        held = f"{position.prefix_in_table} of {position.prefix_tokens} prefix tokens in the table"
        held += f", then {position.norm_after}" if position.norm_after else ""
        rows.append(("position embedding", f"{position.name}, {kind}, {held}"))
    if a.prefix_tokens:
        rows.append(("prefix tokens", as_names(a.prefix_tokens)))
    if (attention := a.first_attention) is not None:
        kind = "fused q, k, v" if attention.fused else "separate q, k, v"
        norm = f"after {attention.norm.module}" if attention.norm else "no norm before it"
        bias = "with bias" if attention.biases else "no bias"
        rows.append(
            ("first attention", f"{as_names(attention.weights)} ({kind}), {bias}, {attention.heads} heads, {norm}")
        )
    if a.blocks:
        rows.append(("blocks", f"{len(a.blocks)}: {as_names(a.blocks)}"))
    kinds = Counter(a.norms.values())
    rows.append(("norms", ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "none"))
    rows.append(("stochastic layers", as_names(a.stochastic) or "none"))
    rows.append(("mixes samples", _mixing(a)))
    rows.extend(("note", note) for note in a.notes)
    return rows


def _mixing(anatomy: Anatomy) -> str:
    if anatomy.mixes_in_evaluation:
        return "yes, even in evaluation mode"
    return (
        f"{as_names([n or 'as a whole' for n in anatomy.mixes_samples])} (in train mode)"
        if anatomy.mixes_samples
        else "no"
    )


def _bias(bias: str | None) -> str:
    return " + bias" if bias else ", no bias"


def _by(pair: tuple[int, int]) -> str:
    return f"{pair[0]}×{pair[1]}"


def _numbers(values: list[float]) -> str:
    return "(" + ", ".join(f"{v:.4g}" for v in values) + ")"
