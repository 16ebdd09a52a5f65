"""Values that count as constants, although they were computed from what is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

__all__ = ["held"]

Value = TypeVar("Value")


def held(compute: Callable[..., Value], *tensors: Tensor) -> Value:
    """``compute(*tensors)`` as a constant: no gradient flows through it.

    Training losses hold such pieces: which prediction answers for which box, the trade-off weight of an IoU loss. A
    gradient that treats them as fixed is only the limit of a difference quotient if the difference keeps them fixed,
    too. So this is an operation that a torch-function mode sees (``attacks.masks`` imposes the first pass's value on
    the second), as it sees ReLU.
    """
    if has_torch_function(tensors):
        return handle_torch_function(held, tensors, compute, *tensors)
    with torch.no_grad():
        return compute(*(tensor.detach() for tensor in tensors))
