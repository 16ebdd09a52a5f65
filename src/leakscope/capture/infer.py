"""What a captured update tells about the client by itself, without an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from torch import Tensor

from leakscope.capture.fit import changes, targets
from leakscope.capture.update import Update
from leakscope.client.precision import PRECISIONS, Precision
from leakscope.models import VisionModel

__all__ = ["Inferred", "infer"]

_COUNTER: Final = "num_batches_tracked"
_SIGN_LIKE: Final = 0.9
"""The share of entries within 1 % of the largest from which a step counts as sign-like, as Adam's first is."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """Findings; ``None`` is not known.

    ``moved`` and ``still``: parameters that changed, or were sent unchanged; ``withheld``: trainable ones that were not
    sent. ``mode``: BatchNorm's. ``steps``: forward passes that BatchNorm counted. ``lr``: the learning rate, told by
    the framework or read off a step that moved all weights alike (``sign_like``). ``travel``: a lower bound of learning
    rate × steps, for SGD on a mean loss. ``precision``: the coarsest type that holds every sent number exactly.
    """

    moved: tuple[str, ...]
    still: tuple[str, ...]
    withheld: tuple[str, ...]
    mode: Literal["train", "eval"] | None
    steps: int | None
    lr: float | None
    sign_like: bool
    travel: float | None
    precision: Precision
    notes: tuple[str, ...]


def infer(update: Update, model: VisionModel) -> Inferred:
    """Read off ``update`` what it tells about its client; it must fit the model."""
    change, new = changes(update, model), targets(update, model)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    moved = tuple(name for name, value in change.items() if bool(value.any()))
    notes: list[str] = []
    mode, steps = _batch_norm(update, model, new, notes)
    told = update.fact("steps")
    if told is not None and steps is not None and int(told) != steps:
        notes.append(f"The framework told {told:g} local steps; BatchNorm counted {steps} batches.")
    size = _sign_like(change) if update.kind != "gradient" else None
    if size is not None:
        notes.append(f"Nearly every weight moved by {size:.3g}: a step of Adam or of signs, not of SGD.")
    return Inferred(
        moved=moved,
        still=tuple(name for name in change if name not in moved),
        withheld=tuple(name for name in trained if name not in change),
        mode=mode,
        steps=steps if steps is not None else (int(told) if told else None),
        lr=size if (told_lr := update.fact("lr")) is None else told_lr,
        sign_like=size is not None,
        travel=_travel(change, model) if update.kind != "gradient" else None,
        precision=_precision(update),
        notes=tuple(notes),
    )


def _batch_norm(
    update: Update, model: VisionModel, new: Mapping[str, Tensor], notes: list[str]
) -> tuple[Literal["train", "eval"] | None, int | None]:
    """BatchNorm's mode and the batches it counted, from buffers that crossed the wire."""
    if not any(kind.startswith("BatchNorm") for kind in model.anatomy.norms.values()):
        return None, None
    statistics = [name for name in new if name.endswith(("running_mean", "running_var"))]
    if not statistics:
        notes.append("BatchNorm's running statistics were not sent, so its mode cannot be told.")
        return None, None
    start = update.received or model.state_dict()
    own = dict(model.named_buffers())
    moved = [name for name in statistics if not torch.equal(new[name], start[name].to(own[name]))]
    counters = [name for name in new if name.endswith(_COUNTER) and name in start]
    counted = {int(new[name]) - int(start[name].to(own[name])) for name in counters}
    steps = counted.pop() if len(counted) == 1 else None
    if not moved:
        return "eval", None
    if len(moved) < len(statistics):
        notes.append(f"{len(statistics) - len(moved)} of {len(statistics)} running statistics stayed as they were.")
    return "train", steps if steps and steps > 0 else None


def _sign_like(change: Mapping[str, Tensor]) -> float | None:
    """Adam's first step is η·sign(g) wherever g is not tiny: then nearly all entries are equally large."""
    sizes = torch.cat([value.detach().abs().flatten().double() for value in change.values()])
    sizes = sizes[sizes > 0]
    if len(sizes) < 16:
        return None
    middle = float(sizes.median())
    if float(((sizes - middle).abs() <= 0.01 * middle).double().mean()) < _SIGN_LIKE:
        return None
    return middle


def _travel(change: Mapping[str, Tensor], model: VisionModel) -> float | None:
    """‖Δb‖₁ / 2 ≤ η · steps: the cross-entropy's gradient in the logits, softmax − one-hot, has an L1 norm below 2."""
    head = model.anatomy.classifier
    if head is None or head.bias is None or head.bias not in change or head.scale != 1:
        return None
    bound = float(change[head.bias].abs().sum()) / 2
    return bound if bound > 0 else None


def _precision(update: Update) -> Precision:
    values = [value for value in update.sent.values() if value.is_floating_point()]
    for name in ("fp16", "bf16"):
        dtype = PRECISIONS[name]
        if dtype is not None and all(torch.equal(v.to(dtype).to(v.dtype), v) for v in values):
            return "fp16" if name == "fp16" else "bf16"
    return "full"
