"""Half-precision transport: the client rounds what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import torch
from torch import Tensor

from leakscope.errors import BadInput

__all__ = ["PRECISIONS", "Precision", "check_precision", "rounded"]

Precision = Literal["full", "fp16", "bf16"]

PRECISIONS: Final[Mapping[str, torch.dtype | None]] = {"full": None, "fp16": torch.float16, "bf16": torch.bfloat16}


def rounded(value: Tensor, precision: Precision) -> Tensor:
    """The nearest numbers that ``precision`` can write, in the tensor's own type; its derivative is that of identity.

    (Straight-through: rounding is flat almost everywhere, and its true derivative, 0, would tell an attacker nothing.)
    """
    dtype = PRECISIONS[precision]
    if dtype is None or not value.is_floating_point():
        return value
    coarse = value.detach().to(dtype).to(value.dtype)
    # Exactly `coarse`: value + (coarse − value) would be off by the last digit.
    return coarse + (value - value.detach()) if value.requires_grad else coarse


def check_precision(precision: str) -> None:
    """Raise for a precision that is not one of :data:`PRECISIONS`."""
    if precision not in PRECISIONS:
        raise BadInput(f"precision is '{precision}'; accepted: {', '.join(repr(p) for p in PRECISIONS)}.")
