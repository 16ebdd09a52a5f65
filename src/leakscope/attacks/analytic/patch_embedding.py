"""Every patch of one image from the gradients of a patch embedding and of a position embedding, by one linear solve.

Token p enters the network as z_p = W x_p + b + e_p, so with δ_p = ∂L/∂z_p, whatever the network does with the tokens,

    ∂L/∂e_p = δ_p,        ∂L/∂b = Σ_p δ_p,        ∂L/∂W = Σ_p δ_p x_pᵀ,

and stacking the first into Δ (P, D) turns the last into the linear system **Δᵀ X = G** for the patches X (P, 3p²).
No label, loss or weight is needed. It is exact iff rank Δ = P. A pre-norm transformer does not see a constant added
to a token, so each δ_p is orthogonal to 1 and P ≤ D − 1 is needed; where less is missing than half, the least-norm
solution is returned and the evidence says so. Both sides scale alike, so an SGD weight delta serves as well as a
gradient; deltas of several steps mix tables of several networks, which the residual shows.

Two checks need no truth: Σ_p Δ_p = ∂L/∂b, and G lies in the column space of Δᵀ (while P < D − 1). The first tells
whether the two gradients belong together and how noisy they are; the second fails when several images were summed.

Known for its B = 1 consequences from APRIL (Lu et al. 2022), whose closed form needs an attention layer of a special
kind; this one does not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

import torch

from leakscope.attacks.analytic._one_image import Finding, finish, gradient, refuse_batches
from leakscope.attacks.analytic._patch_system import PatchSystem, solve
from leakscope.attacks.registry import register_attack
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import relative
from leakscope.functional.patches import from_patches, range_excess
from leakscope.models import Anatomy, PatchEmbedding
from leakscope.types import Callback, Observation, Reconstruction

__all__ = ["PatchEmbeddingSolve", "linear_patch_embedding", "patch_embedding", "patch_system"]

_UNRELATED = 0.2
_SEVERAL = 0.05
_IMPLAUSIBLE = 0.05


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PatchEmbeddingSolve:
    """Solve Δᵀ X = G; see the module."""

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        started = time.perf_counter()
        refuse_batches(observation)
        system = patch_system(observation)
        model = observation.model
        found = solve(system, mean=model.mean.double(), std=model.std.double(), shape=model.input.shape)
        pixels = from_patches(found.patches, model.input.shape, system.patch) * model.std.double() + model.mean.double()
        known = {} if found.self_check is None else {"self-check": found.self_check}
        evidence = {
            "patches": system.count,
            "rank": found.rank,
            "condition": found.condition,
            **known,
            "residual": found.residual,
            "noise": found.noise,
            "excess": range_excess(pixels),
        }
        _check(observation, evidence, system)
        missing = system.count - found.rank
        message = "Every patch follows from the equations." if missing == 0 else (
            f"{missing} of {system.count} directions are not in the equations and were left at their least norm."
        )
        if found.self_check is not None and found.residual > 1e-4 and found.residual > 30 * found.self_check:
            message += " The equations hold only approximately, as after several local steps."
        energy = max(found.residual, found.self_check or 0.0)
        return finish(observation, Finding(pixels=pixels, energy=energy, evidence=evidence, message=message), started)


@register_attack("patch-embedding", cites="lu2022")
def patch_embedding() -> PatchEmbeddingSolve:
    """Closed form: one least-squares solve gives every patch of a single image on a ViT with a learnable position table."""
    return PatchEmbeddingSolve()


def linear_patch_embedding(anatomy: Anatomy) -> PatchEmbedding:
    """The patch embedding, if pixels become tokens by one linear layer and nothing else."""
    embedding = anatomy.patch_embedding
    if embedding is None:
        raise NotApplicable("This model has no patch embedding that is known: no layer turns patches into tokens.")
    if not embedding.linear:
        raise NotApplicable(
            f"The patch embedding '{embedding.module}' is not linear in separate patches (they overlap, or a norm or "
            "further layers follow), so its gradient is no sum of one term per patch."
        )
    return embedding
