"""Twins: pictures that explain a signal and are not the ones it came from (APRIL, Lu et al. 2022)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file

from leakscope.attacks.terms.matching import as_seen
from leakscope.audit.record import Record
from leakscope.audit.run import Case
from leakscope.audit.store import TENSORS

__all__ = ["EXPLAINED", "RIGHT", "explained", "relative_distance"]

EXPLAINED: Final = 0.1
"""The largest ‖g(x̂) − g*‖ / ‖g*‖ at which a picture counts as explaining a signal: 99 % of its energy."""
RIGHT: Final = 20.0
"""PSNR in dB from which a picture counts as the original; a blank reaches 10 to 15."""


def explained(case: Case, record: Record, folder: Path) -> dict[str, str | float]:
    """How well what came back explains the signal, and what to call it: ``recovered``, ``twin`` or ``missed``.

    The images count by their mean: a wrong picture with a small distance of gradients is a twin, and no success.
    """
    distance = relative_distance(case, folder)
    values = record.metric("psnr") or []
    right = bool(values) and sum(values) / len(values) >= RIGHT
    finding = "recovered" if right else "twin" if distance <= EXPLAINED else "missed"
    return {"gradient distance": distance, "finding": finding}


def relative_distance(case: Case, folder: Path) -> float:
    """‖g(x̂) − g*‖ / ‖g*‖ over the parameters whose gradient was shared, as this server sees them."""
    seen, stored = case.observe(), load_file(folder / TENSORS)
    images = stored["images"].to(seen.model.device, seen.model.dtype)
    replayed = as_seen(seen, seen.protocol.replay(seen.model, images, stored["labels"].to(seen.model.device)))
    observed = seen.gradients
    gap = torch.stack([(replayed[name].detach() - g).norm() for name, g in observed.items()]).norm()
    return float(gap / torch.stack([g.norm() for g in observed.values()]).norm())
