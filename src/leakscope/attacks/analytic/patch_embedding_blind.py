"""Every patch of one image without the position embedding's gradient: withheld by the client, or a frozen table.

Two row spaces are read off the gradients of a single image. That of ∂L/∂W_patch = Σ_p δ_p x_pᵀ is spanned by the
patches: x_p = V a_p. That of block 0's ∂L/∂W_qkv = Σ_t (∂L/∂qkv_t) n_tᵀ is spanned by the normalised tokens
n_t = γ ⊙ C z_t / σ_t + β, with C the centring and z_p = W x_p + b + e_p. With N the projector off that space,
N n_p = 0:

    N [γ ⊙ C(W V a_p + b + e_p) + σ_p β] = 0,        linear in (a_p, σ_p), one small system for each patch.

Only the position table e_p tells the patches apart. It must do so: a table whose rows span fewer dimensions than there
are patches (the fixed two-dimensional sine-cosine table) leaves the system without a unique solution.

Patches that are equal (a flat region) or dependent lower the rank r ≤ P of the first space, leaving fewer unknowns.
Needs the number of tokens N ≤ D, and D − N > r equations for each patch. Self-check without the truth: the patches
give Δᵀ = G X⁺, and its rows must sum to ∂L/∂b.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.analytic._one_image import Finding, finish, gradient, parameter, refuse_batches
from leakscope.attacks.analytic.patch_embedding import linear_patch_embedding
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import numerical_rank, relative, row_space
from leakscope.functional.patches import from_patches, range_excess
from leakscope.models import Anatomy, Attention, PositionEmbedding, VisionModel
from leakscope.types import Callback, Observation, Reconstruction

__all__ = ["BlindPatchEmbeddingSolve", "patch_embedding_blind"]

_BLURRED: Final = 0.7
_MISMATCH: Final = 0.05
_IMPLAUSIBLE: Final = 0.05
_SHARP: Final = 1e-3  # a drop of singular values that ends a row space
_SAME: Final = 1e-6
_NORMS: Final = {"LayerNorm": True, "LayerNormFp32": True, "RmsNorm": False, "RMSNorm": False}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BlindPatchEmbeddingSolve:
    """Intersect the row spaces of the patch embedding's and the first attention's gradients; see the module."""

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        started = time.perf_counter()
        refuse_batches(observation)
        model = observation.model
        embedding = linear_patch_embedding(model.anatomy)
        position = _position(model.anatomy)
        attention = _attention(model.anatomy)
        count = embedding.grid[0] * embedding.grid[1]
        tokens = count + position.prefix_tokens
        g = gradient(observation, embedding.weight, "the patch embedding").flatten(1)  # (D, M)
        qkv = torch.cat([gradient(observation, name, "the first attention") for name in attention.weights])
        basis, blur = _patch_space(g, count)  # (r, M)
        rank = len(basis)
        _count_equations(width=g.shape[0], pixels=g.shape[1], count=count, tokens=tokens, rank=rank)
        normed, qkv_blur = _span(qkv, tokens, "first attention", "tokens")  # (N, D)
        table = parameter(model, position.name).reshape(-1, g.shape[0])[position.prefix_in_table :]
        weight = parameter(model, embedding.weight).flatten(1)  # (D, M)
        bias = 0 if embedding.bias is None else parameter(model, embedding.bias)
        seen, beta = _norm_view(model, attention, len(weight))
        off = _off(normed)
        system = off(seen((weight @ basis.mT).mT)).mT  # (D, r): N γ⊙C W V
        target = -off(seen(bias + table)).mT  # (D, P), a column for each patch
        shift = off(beta[None]).mT  # (D, 1): N β
        if float(shift.norm()) > 1e-9 * float(system.norm()):
            system = torch.cat([system, shift], dim=1)
        solved, condition = _least_squares(system, target, rank)
        patches = solved[:rank].mT @ basis  # (P, M)
        residual = relative(system @ solved - target, target)
        pixels = from_patches(patches, model.input.shape, embedding.patch) * model.std.double() + model.mean.double()
        excess = range_excess(pixels)
        check = None
        if embedding.bias is not None and embedding.bias in observation.signal:
            total = gradient(observation, embedding.bias, "the patch embedding's bias")
            check = _sum_mismatch(g, patches, total)
        _refuse_garbage(check, excess, residual)
        evidence = {
            "patches": count,
            "rank": rank,
            "condition": condition,
            **({} if check is None else {"self-check": check}),
            "residual": residual,
            "gap of patches": blur,
            "gap of tokens": qkv_blur,
            "excess": excess,
        }
        alike = "" if rank == count else f" (of rank {rank}: some are equal or dependent)"
        message = f"All {count} patches{alike} follow from the row spaces of two gradients and the position table."
        energy = max(excess, residual) if check is None else check
        return finish(observation, Finding(pixels=pixels, energy=energy, evidence=evidence, message=message), started)


@register_attack(
    "patch-embedding-blind",
    cites="lu2022",
    leaky=Leaky(
        model={"name": "leakscope:april-b", "image_size": 16, "num_classes": 10},
        psnr=60,
    ),
)
def patch_embedding_blind() -> BlindPatchEmbeddingSolve:
    """Every patch of a single image without the position gradient, from the first attention's gradient instead."""
    return BlindPatchEmbeddingSolve()


def _position(anatomy: Anatomy) -> PositionEmbedding:
    position = anatomy.position_embedding
    if position is None:
        raise NotApplicable("This model adds no absolute position table with one row per patch to its tokens.")
    if position.norm_after is not None:
        raise NotApplicable(
            f"'{position.norm_after}' normalises the tokens before the first block: what its attention sees is not "
            "linear in the patches."
        )
    return position


def _attention(anatomy: Anatomy) -> Attention:
    attention = anatomy.first_attention
    if attention is None:
        raise NotApplicable("The first attention of this model is not known.")
    if attention.norm is not None and (kind := anatomy.norms.get(attention.norm.module)) not in _NORMS:
        raise NotApplicable(f"The norm before the first attention is a {kind}; accepted are {', '.join(_NORMS)}.")
    return attention


def _count_equations(*, width: int, pixels: int, count: int, tokens: int, rank: int) -> None:
    if count > pixels and rank == pixels:
        raise NotApplicable(
            f"{count} patches of {pixels} numbers each: their row space is everything, and says nothing."
        )
    if width - tokens < rank + 1:
        raise NotApplicable(
            f"{tokens} tokens of width {width} leave {max(width - tokens, 0)} equations for the {rank} unknowns of "
            "each patch. The width must exceed twice the number of patches."
        )


def _patch_space(g: Tensor, count: int) -> tuple[Tensor, float]:
    """The row space of the patches, (r, M), and the gap behind it; r < P where patches are equal or dependent.

    A flat region gives the same patch several times. Its positions have equations of their own, so nothing is lost, but
    the singular values then end before the P-th, in a sharp drop, and go on with rounding.
    """
    values = torch.linalg.svdvals(g)
    most = min(count, len(values))
    values = values.clamp_min(max(g.shape) * torch.finfo(g.dtype).eps * float(values[0]))
    drops = values[1:] / values[:-1]
    behind = float(drops[most - 1]) if most < len(values) else 1.0
    drops = drops[: most - 1]
    if len(drops) and behind > _BLURRED and float(drops.min()) < _SHARP:
        return _span(g, 1 + int(drops.argmin()), "patch embedding", "different patches")
    return _span(g, most, "patch embedding", "patches")


def _span(matrix: Tensor, rank: int, what: str, of: str) -> tuple[Tensor, float]:
    """The row space of a gradient that must have this rank, and the gap behind it."""
    basis, _, gap = row_space(matrix, rank)
    if gap > _BLURRED:
        raise NotApplicable(
            f"The gradient of the {what} does not have the rank of one image's {rank} {of}: the singular value after "
            f"the last is {gap:.0%} of it. Several images were summed, the weakest direction drowns in rounding or "
            "noise, or the position table does not tell the patches apart."
        )
    return basis, gap


def _norm_view(model: VisionModel, attention: Attention, width: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """z ↦ γ ⊙ C z, the part of the norm that is linear, for rows z; and β."""
    zero = torch.zeros(width, dtype=torch.float64, device=model.device)
    norm = attention.norm
    if norm is None:
        return lambda z: z, zero
    gamma = parameter(model, norm.weight)
    beta = zero if norm.bias is None else parameter(model, norm.bias)
    if _NORMS[model.anatomy.norms[norm.module]]:
        return lambda z: gamma * (z - z.mean(-1, keepdim=True)), beta
    return lambda z: gamma * z, beta


def _off(basis: Tensor) -> Callable[[Tensor], Tensor]:
    """The projector off the row space of ``basis``, for rows."""
    return lambda z: z - (z @ basis.mT) @ basis


def _least_squares(system: Tensor, target: Tensor, count: int) -> tuple[Tensor, float]:
    u, s, v = torch.linalg.svd(system, full_matrices=False)
    rank = numerical_rank(s, max(system.shape))
    if rank < min(count, len(s)):
        raise NotApplicable(
            f"The position table tells only {rank} of {count} patches apart: its rows span too few dimensions, as "
            "those of a fixed two-dimensional sine-cosine table do."
        )
    solved = v[:rank].mT @ ((u[:, :rank].mT @ target) / s[:rank, None])
    return solved, float(s[0] / s[rank - 1])


def _sum_mismatch(g: Tensor, patches: Tensor, total: Tensor) -> float | None:
    """‖Σ_p Δ_p − ∂L/∂b‖ / ‖∂L/∂b‖ with Δᵀ = G X⁺: Σ_p Δ_p = G u where X u = 1; ``None`` if there is none."""
    ones = torch.ones(len(patches), 1).to(patches)
    u = torch.linalg.lstsq(patches, ones, rcond=_SAME, driver="gelsd").solution
    # Patches that depend on each other without being equal (two flat greys) leave the sum of their Δ open.
    if relative(patches @ u - ones, ones) > _SHARP:
        return None
    return relative((g @ u)[:, 0] - total, total)


def _refuse_garbage(check: float | None, excess: float, residual: float) -> None:
    if excess > _IMPLAUSIBLE or (residual if check is None else check) > _MISMATCH:
        what, size = ("the equations hold", residual) if check is None else ("they explain the bias gradient", check)
        raise NotApplicable(
            f"The patches are not settled: {what} up to {size:.1%}, and the picture leaves the pixel range by "
            f"{excess:.2g}. Several images were summed, the signal is too noisy, or the position table hardly "
            "tells the patches apart."
        )
