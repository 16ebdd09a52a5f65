"""The input of a convolution from its gradient, its weights and its output: one least-squares solve, one image.

For z = w ∗ a + b with δ = ∂L/∂z, two sets of equations are linear in the unknown input a, (C, H, W):

    ∂L/∂w = δ ⋆ a         C_out·C_in·k² equations, all channels of a under one matrix made of δ,
    w ∗ a = σ⁻¹(a_out) − b   C_out·H′·W′ equations, where the activation can be undone.

Either set alone is too few; stacked they often determine a, which the rank tells (R-GAP, Zhu and Blaschko 2021).
Each equation counts by the inverse of its expected error: gradients carry rounding errors relative to the largest of
them, and a pre-activation σ⁻¹(a) magnifies an error in a by 1/σ′.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.analytic.chain import Link
from leakscope.errors import NotApplicable

__all__ = ["LayerSolve", "convolution_backward", "solve_convolution"]

_DEPENDENT = 1e-8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSolve:
    """How one layer's input was found: equations, unknowns, rank, condition number, relative residual."""

    layer: str
    equations: int
    unknowns: int
    rank: int
    condition: float
    residual: float


def solve_convolution(
    link: Link, delta: Tensor, gradient: Tensor, output: Tensor, *, largest: int
) -> tuple[Tensor, LayerSolve]:
    """a (C, H, W) from δ (C_out, H′, W′), ∂L/∂w and σ(z) of the same shape as δ; everything float64 on the CPU.

    Raises :class:`NotApplicable` where the equations leave a part of a open, or are too many to solve at once.
    """
    layer = link.layer
    assert isinstance(layer, nn.Conv2d)
    unknowns = link.input[0] * link.input[1] * link.input[2]
    slope = link.activation.derivative(output, threshold=1e-6).flatten()
    usable = slope > 0 if link.activation.name == "relu" else torch.ones_like(slope, dtype=torch.bool)
    equations = gradient.numel() + int(usable.sum())
    if equations < unknowns:
        raise NotApplicable(
            f"The input of '{link.module}' has {unknowns} unknowns for {equations} equations "
            f"({gradient.numel()} from the gradient, {int(usable.sum())} from the weights)."
        )
    if unknowns > largest:
        raise NotApplicable(
            f"The input of '{link.module}' has {unknowns} unknowns; more than {largest} are not solved at once "
            "(raise 'largest' where there is memory)."
        )
    places = _places(layer, link.input)
    weight = layer.weight.detach().double().cpu()
    bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.detach().double().cpu()
    target = link.activation.inverse(output) - bias[:, None, None]
    trust = slope.clamp_min(torch.finfo(slope.dtype).eps)[usable, None]
    forward = torch.cat([_forward_matrix(weight, places, link.input, layer.groups), target.reshape(-1, 1)], dim=1)
    size = gradient.abs().max()
    backward = torch.cat([_gradient_matrix(delta, places, link.input, layer.groups), gradient.reshape(-1, 1)], dim=1)
    system = torch.cat([forward[usable] * trust, backward / size])
    values, condition, residual = _least_squares(system, link.module)
    solve = LayerSolve(
        layer=link.module,
        equations=equations,
        unknowns=unknowns,
        rank=unknowns,
        condition=condition,
        residual=residual,
    )
    return values.reshape(link.input), solve


def convolution_backward(link: Link, delta: Tensor) -> Tensor:
    """∂L/∂a (C, H, W) from δ = ∂L/∂z."""
    layer = link.layer
    assert isinstance(layer, nn.Conv2d)
    weight = layer.weight.detach().to(delta)
    with torch.enable_grad():
        start = torch.zeros(1, *link.input, dtype=delta.dtype, requires_grad=True)
        answer = F.conv2d(start, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    return torch.autograd.grad(answer, start, delta[None])[0][0]


def _places(layer: nn.Conv2d, shape: tuple[int, ...]) -> Tensor:
    """For each tap of the kernel and each output position the input position it reads, (k², H′W′); 0 is padding."""
    _, height, width = shape
    index = torch.arange(1, height * width + 1, dtype=torch.float64).reshape(1, 1, height, width)
    if isinstance(layer.padding, str):
        extents = zip(layer.dilation, layer.kernel_size, strict=True)
        spans = [step * (taps - 1) if layer.padding == "same" else 0 for step, taps in extents]
        pads = [(span // 2, span - span // 2) for span in spans]
    else:
        pads = [(int(p), int(p)) for p in layer.padding]
    index = F.pad(index, (*pads[1], *pads[0]))
    return F.unfold(index, layer.kernel_size, dilation=layer.dilation, stride=layer.stride)[0].long()


def _forward_matrix(weight: Tensor, places: Tensor, shape: tuple[int, ...], groups: int) -> Tensor:
    """The convolution as a matrix, (C_out·H′W′, C·HW)."""
    channels, pixels = shape[0], shape[1] * shape[2]
    out, inside = weight.shape[:2]
    taps, positions = places.shape
    matrix = torch.zeros(out, positions, channels, pixels + 1, dtype=weight.dtype)
    kernel = torch.zeros(out, channels, taps, dtype=weight.dtype)
    for group in range(groups):
        mine, theirs = out // groups, slice(group * inside, (group + 1) * inside)
        kernel[group * mine : (group + 1) * mine, theirs] = weight[group * mine : (group + 1) * mine].flatten(2)
    where = torch.arange(positions).expand(taps, positions)
    # One position's taps read different pixels, so nothing is written twice but padding, which is dropped.
    matrix[:, where, :, places] = kernel.permute(2, 0, 1)[:, None].expand(taps, positions, out, channels)
    return matrix[..., 1:].reshape(out * positions, channels * pixels)


def _gradient_matrix(delta: Tensor, places: Tensor, shape: tuple[int, ...], groups: int) -> Tensor:
    """The map a ↦ ∂L/∂w as a matrix, (C_out·C_in·k², C·HW): one block per input channel, made of δ alone."""
    channels, pixels = shape[0], shape[1] * shape[2]
    out, (taps, positions) = len(delta), places.shape
    block = torch.zeros(out, taps, pixels + 1, dtype=delta.dtype)
    block[:, torch.arange(taps)[:, None], places] = delta.reshape(out, 1, positions).expand(out, taps, positions)
    inside = channels // groups
    matrix = torch.zeros(out, inside, taps, channels, pixels, dtype=delta.dtype)
    for channel in range(inside):
        for group in range(groups):
            mine = slice(group * (out // groups), (group + 1) * (out // groups))
            matrix[mine, channel, :, group * inside + channel] = block[mine, :, 1:]
    return matrix.reshape(out * inside * taps, channels * pixels)


def _least_squares(system: Tensor, name: str) -> tuple[Tensor, float, float]:
    """x with A x ≈ y for ``system`` = [A | y], its condition number and its relative residual, by one QR.

    The triangle of [A | y] holds Qᵀy in its last column and the residual in its corner; the condition number is
    LAPACK's estimate from the triangle (1-norm), a thousandth of the work of a singular value decomposition.
    """
    count = system.shape[1] - 1
    size = float(system[:, -1].norm())
    triangle = torch.linalg.qr(system, mode="r")[1]
    square, right = triangle[:count, :count], triangle[:count, count]
    rest = float(triangle[count, count].abs()) if len(triangle) > count else 0.0
    estimate = get_lapack_funcs(("trcon",), (square.numpy(),))[0]
    reciprocal = float(estimate(square.numpy())[0])
    if reciprocal < _DEPENDENT:
        values = torch.linalg.eigvalsh(square.T @ square).clamp_min(0).sqrt()
        rank = int((values > _DEPENDENT * values.max()).sum())
        if rank < count:
            raise NotApplicable(
                f"The equations for the input of '{name}' have rank {rank} of {count}: {count - rank} directions of it "
                "leave no trace in the gradient and the weights."
            )
    solution = torch.linalg.solve_triangular(square, right[:, None], upper=True)[:, 0]
    return solution, 1 / max(reciprocal, 1e-300), rest / size if size else 0.0
