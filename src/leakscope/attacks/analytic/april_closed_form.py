"""APRIL's closed form (Lu et al. 2022): every token of one image where attention takes the embedded tokens as they are.

On Architecture A the tokens z = (class token, x W_patchᵀ + b) + E_pos enter self-attention with no norm before it and
no residual around it. With Q = z W_Qᵀ and so on, ∂L/∂W_Q = (∂L/∂Q)ᵀ z and ∂L/∂z = Σ ∂L/∂Q W_Q over Q, K, V, hence

    W_Qᵀ ∂L/∂W_Q + W_Kᵀ ∂L/∂W_K + W_Vᵀ ∂L/∂W_V = (∂L/∂z)ᵀ z,        ∂L/∂z = ∂L/∂E_pos:

linear equations for z (N, D), exact iff rank ∂L/∂E_pos = N. The patch embedding is then undone,
x_p = W⁺(z_p − b − e_p), which needs W_patch of full column rank (D ≥ C·p²). Self-check without the truth: the class
token comes out too, and the server knows it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.analytic._one_image import Finding, finish, gradient, parameter, refuse_batches
from leakscope.attacks.analytic.patch_embedding import linear_patch_embedding
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import numerical_rank, spectrum
from leakscope.functional.patches import from_patches, range_excess
from leakscope.models import Anatomy, Attention, PositionEmbedding
from leakscope.types import Callback, Observation, Reconstruction

__all__ = ["AprilClosedForm", "april_closed_form"]

_WRONG: Final = 0.05


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AprilClosedForm:
    """Solve (∂L/∂E_pos)ᵀ z = Σ Wᵀ ∂L/∂W for the tokens, then undo the patch embedding; see the module."""

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        started = time.perf_counter()
        refuse_batches(observation)
        model = observation.model
        embedding = linear_patch_embedding(model.anatomy)
        attention, position = _architecture(model.anatomy)
        delta = gradient(observation, position.name, "the position embedding")
        delta = delta.reshape(-1, delta.shape[-1])  # (N, D)
        tokens, width = delta.shape
        products = [  # a fused weight holds q, k and v in its rows, and sums over them by itself
            parameter(model, name).mT @ gradient(observation, name, "the first attention") for name in attention.weights
        ]
        system = spectrum(delta.mT, torch.stack(products).sum(0))  # ΔᵀZ = Σ WᵀG, (D, N)(N, D) = (D, D)
        if len(system.values) < tokens:
            raise NotApplicable(
                f"The position gradient has rank {len(system.values)} for {tokens} tokens of width {width}: the "
                "equations do not determine every token."
            )
        z = system.solve(torch.ones_like(system.values)[:, None])  # (N, D)
        table = parameter(model, position.name).reshape(-1, width)
        prefix = position.prefix_tokens
        weight = parameter(model, embedding.weight).flatten(1)  # (D, M)
        bias = 0 if embedding.bias is None else parameter(model, embedding.bias)
        patches, condition = _undo(weight, z[prefix:] - bias - table[prefix:])
        pixels = from_patches(patches, model.input.shape, embedding.patch) * model.std.double() + model.mean.double()
        known = (
            torch.cat([parameter(model, name).reshape(-1, width) for name in model.anatomy.prefix_tokens])
            + table[:prefix]
        )
        typical = z.square().sum(1).mean().sqrt()  # the class token itself may be tiny
        check = float((z[:prefix] - known).norm() / typical)
        excess = range_excess(pixels)
        if check > _WRONG or excess > _WRONG:
            raise NotApplicable(
                f"The equations do not hold: the class token, which is known, comes out wrong by {check:.1%} of a "
                f"token, and the picture leaves the pixel range by {excess:.2g}. More than one image was summed, "
                "the signal is noisy, or a residual runs around the first attention."
            )
        evidence = {
            "tokens": tokens,
            "rank": len(system.values),
            "condition": float(system.values[0] / system.values[-1]),
            "condition of patch embedding": condition,
            "self-check": check,
            "residual": float((system.outside.sum() / torch.stack(products).sum(0).square().sum()).sqrt()),
            "excess": excess,
        }
        message = f"All {tokens} tokens follow from the first attention, and the patches from the tokens."
        return finish(observation, Finding(pixels=pixels, energy=check, evidence=evidence, message=message), started)


@register_attack(
    "april-closed-form",
    cites="lu2022",
    leaky=Leaky(
        model={"name": "leakscope:april-a", "image_size": 16, "num_classes": 10},
        psnr=50,
    ),
)
def april_closed_form() -> AprilClosedForm:
    """APRIL's closed form for a single image, where attention takes the embedded tokens with no norm or residual."""
    return AprilClosedForm()


def _architecture(anatomy: Anatomy) -> tuple[Attention, PositionEmbedding]:
    """The parts of Architecture A, or the reason why this is none."""
    attention, position = anatomy.first_attention, anatomy.position_embedding
    if attention is None or position is None:
        raise NotApplicable("This model has no known self-attention on tokens with an absolute position table.")
    if attention.norm is not None:
        raise NotApplicable(
            f"'{attention.norm.module}' stands before the first attention. APRIL's closed form needs attention on the "
            "embedded tokens themselves (Architecture A); 'patch-embedding' has no such condition."
        )
    if position.norm_after is not None or position.prefix_in_table != position.prefix_tokens:
        raise NotApplicable("Some tokens have no row in the position table, or a norm follows it.")
    return attention, position


def _undo(weight: Tensor, tokens: Tensor) -> tuple[Tensor, float]:
    """x with W x = t for every row t of ``tokens`` (P, D), and the condition number of W (D, M)."""
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    if numerical_rank(s, max(weight.shape)) < weight.shape[1]:
        raise NotApplicable(
            f"The patch embedding maps {weight.shape[1]} pixels to {weight.shape[0]} numbers with rank "
            f"{numerical_rank(s, max(weight.shape))}: it cannot be undone."
        )
    return ((tokens @ u) / s) @ v, float(s[0] / s[-1])
