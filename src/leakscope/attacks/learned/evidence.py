"""What a convolution's gradient says of its input, weighed against what is believed already.

For one image the gradient of a convolution's weights is G = D U(a)ᵀ, where U(a) (Cin·k², L) holds the windows of its
input a and D (Cout, L) = ∂L/∂z comes from the links above; and its output is z = W U(a) + b. Both are linear in a. With
a₀ ± ``left`` believed before (ridge regression), the best estimate minimises

    ‖G − D U(a)ᵀ‖² / s_G² + ‖z − W U(a) − b‖² / s_z² + ‖(a − a₀) / left‖².

s_G and s_z are measured on the training pairs, where a is known. They hold whatever is wrong with G, D and z: the noise
of a defence, the errors of the links above. A signal that says nothing then changes nothing.
"""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ConvEvidence"]

_STEPS: Final = 30
_TINY: Final = 1e-12


@final
class ConvEvidence(nn.Module):
    """The update for one convolution; ``shape`` (Cin, H, W) is that of its input, a and z are rows, (N, …)."""

    share: Tensor
    floor: Tensor
    output: Tensor

    def __init__(self, conv: nn.Conv2d, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._conv, self._shape = (conv,), shape  # a tuple: the target's layer, not a submodule
        self.register_buffer("share", torch.zeros(()))
        self.register_buffer("floor", torch.ones(()))
        self.register_buffer("output", torch.ones(()))

    @staticmethod
    def takes(conv: nn.Module) -> bool:
        """Whether the windows of this layer are those of :func:`torch.nn.functional.unfold`."""
        return (
            isinstance(conv, nn.Conv2d)
            and conv.groups == 1
            and conv.bias is not None
            and conv.padding_mode == "zeros"
            and not isinstance(conv.padding, str)
        )

    def fit(self, truth: Tensor, gradient: Tensor, delta: Tensor, output: Tensor) -> None:
        """s_G² = share · ‖G‖²/n + floor, by least squares over pairs, and s_z², from the true inputs ``truth``."""
        windows = self._windows(truth)
        wrong = (gradient - self._gradient(windows, delta)).square().mean((1, 2))  # (N,)
        size = gradient.square().mean((1, 2))
        spread = (size - size.mean()).square().mean().clamp_min(_TINY)
        share = (((size - size.mean()) * (wrong - wrong.mean())).mean() / spread).clamp_min(0)
        floor = (wrong.mean() - share * size.mean()).clamp_min(1e-3 * float(wrong.mean()) + _TINY)
        self.share.copy_(share)
        self.floor.copy_(floor)
        self.output.copy_((output - self._output(windows)).square().mean().clamp_min(_TINY))

    def forward(self, believed: Tensor, left: Tensor, gradient: Tensor, delta: Tensor, output: Tensor) -> Tensor:
        """The estimate (N, n) of the input, by conjugate gradients in units of ``left`` (n,)."""
        trust = 1 / (self.share * gradient.square().mean((1, 2)) + self.floor)[:, None]  # (N, 1)
        windows = self._windows(believed)
        residual = self._back(gradient - self._gradient(windows, delta), delta, trust)
        residual = left * (residual + self._undo(output - self._output(windows)))
        change = torch.zeros_like(residual)
        direction, size = residual, residual.square().sum(1, keepdim=True)
        for _ in range(_STEPS):
            windows = self._windows(left * direction)
            product = self._back(self._gradient(windows, delta), delta, trust)
            product = direction + left * (product + self._undo(self._output(windows, bias=False)))
            length = size / (direction * product).sum(1, keepdim=True).clamp_min(_TINY)
            change = change + length * direction
            residual = residual - length * product
            before, size = size, residual.square().sum(1, keepdim=True)
            direction = residual + size / before.clamp_min(_TINY) * direction
        return believed + left * change

    def below(self, delta: Tensor) -> Tensor:
        """∂L/∂a from ∂L/∂z, (N, n)."""
        return self._fold(self._weight().T @ delta)

    def _weight(self) -> Tensor:
        return self._conv[0].weight.detach().flatten(1)  # (Cout, Cin·k²)

    def _windows(self, rows: Tensor) -> Tensor:
        conv = self._conv[0]
        return F.unfold(rows.view(-1, *self._shape), conv.kernel_size, conv.dilation, conv.padding, conv.stride)  # pyright: ignore[reportArgumentType]

    def _fold(self, windows: Tensor) -> Tensor:
        conv = self._conv[0]
        size = self._shape[1:]
        return F.fold(windows, size, conv.kernel_size, conv.dilation, conv.padding, conv.stride).flatten(1)  # pyright: ignore[reportArgumentType]

    def _gradient(self, windows: Tensor, delta: Tensor) -> Tensor:
        return delta @ windows.mT  # (N, Cout, Cin·k²)

    def _back(self, gradient: Tensor, delta: Tensor, trust: Tensor) -> Tensor:
        return trust * self._fold(gradient.mT @ delta)

    def _output(self, windows: Tensor, *, bias: bool = True) -> Tensor:
        made = self._weight() @ windows  # (N, Cout, L)
        own = self._conv[0].bias
        if bias and own is not None:
            made = made + own.detach()[:, None]
        return made.flatten(1)

    def _undo(self, output: Tensor) -> Tensor:
        channels = self._conv[0].out_channels
        return self._fold(self._weight().T @ output.view(len(output), channels, -1)) / self.output
