"""Freezing an activation pattern: run a network a second time with the kinks of the first.

A finite difference across a ReLU or max-pool network is wrong by factors wherever a unit flips between the two points.
Recording the pattern in the first pass and imposing it on the second makes the network, there, the smooth piece it is
at the base point. (A torch-function mode sees ``nn.ReLU``, ``F.relu``, ``x.relu()`` and in-place forms alike.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from leakscope.functional.held import held

__all__ = ["ActivationPattern"]

Frozen = Callable[[Tensor], Tensor]
"""A kinked function with its kinks fixed: linear in its argument."""


Kink = Callable[..., tuple[Tensor, Frozen]]
"""A kinked function that returns its output and itself, frozen at this input."""


class ActivationPattern:
    """The pattern of one forward pass: ``with pattern.record(): …`` then ``with pattern.impose(): …``."""

    def __init__(self) -> None:
        self._frozen: list[Frozen] = []

    def __len__(self) -> int:
        """How many kinked functions the recorded pass went through."""
        return len(self._frozen)

    @contextmanager
    def record(self) -> Generator[None]:
        self._frozen.clear()
        with _Intercept(self._record):
            yield

    @contextmanager
    def impose(self) -> Generator[None]:
        remaining = iter(self._frozen)

        def impose(kink: Kink, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
            frozen = next(remaining, None)
            if frozen is None:
                raise RuntimeError("The second pass took another way through the network than the first.")
            return frozen(args[0] if args else kwargs["input"])

        with _Intercept(impose):
            yield

    def _record(self, kink: Kink, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        output, frozen = kink(*args, **kwargs)
        self._frozen.append(frozen)
        return output


class _Intercept(TorchFunctionMode):
    """Sends calls of kinked functions to ``handle``; everything else runs as it is."""

    def __init__(self, handle: Callable[[Kink, Sequence[Any], Mapping[str, Any]], Tensor]) -> None:
        super().__init__()
        self._handle = handle

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kink = _KINKS.get(func)
        if kink is None:
            return func(*args, **(kwargs or {}))
        return self._handle(kink, args, kwargs or {})


def _relu(x: Tensor, inplace: bool = False) -> tuple[Tensor, Frozen]:
    y = torch.relu(x)
    base = y.detach()
    return y, lambda z: torch.ops.aten.threshold_backward(z, base, 0)  # z where the base output is positive


def _leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> tuple[Tensor, Frozen]:
    base = x.detach()
    return (
        torch.nn.functional.leaky_relu(x, negative_slope),
        lambda z: torch.ops.aten.leaky_relu_backward(z, base, negative_slope, False),
    )


def _hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> tuple[Tensor, Frozen]:
    y = x.clamp(min_val, max_val)
    inside = ((x > min_val) & (x < max_val)).detach()
    base = y.detach()
    return y, lambda z: torch.where(inside, z, base)


def _relu6(x: Tensor, inplace: bool = False) -> tuple[Tensor, Frozen]:
    return _hardtanh(x, 0.0, 6.0)


def _max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Frozen]:
    y, where = F.max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)
    return y, lambda z: z.flatten(-2).gather(-1, where.flatten(-2)).view_as(where)


def _held(compute: Callable[..., Any], *tensors: Tensor) -> tuple[Any, Frozen]:
    value = held(compute, *tensors)
    return value, lambda _: value


_KINKS: Final[Mapping[Any, Kink]] = {
    held: _held,
    F.relu: _relu,
    F.relu_: _relu,
    torch.relu: _relu,
    torch.relu_: _relu,
    Tensor.relu: _relu,
    Tensor.relu_: _relu,
    F.relu6: _relu6,
    F.hardtanh: _hardtanh,
    F.leaky_relu: _leaky_relu,
    F.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d,
}
