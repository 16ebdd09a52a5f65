"""Every patch of one image from the gradients of a patch embedding and of a position embedding, by one linear solve.

Token p enters the network as z_p = W x_p + b + e_p, so with δ_p = ∂L/∂z_p, whatever the network does with the tokens,

    ∂L/∂e_p = δ_p,        ∂L/∂b = Σ_p δ_p,        ∂L/∂W = Σ_p δ_p x_pᵀ,

and stacking the first into Δ (P, D) turns the last into the linear system **Δᵀ X = G** for the patches X (P, 3p²).
No label, loss or weight is needed. It is exact iff rank Δ = P. A pre-norm transformer does not see a constant added
to a token, so each δ_p is orthogonal to 1 and P ≤ D − 1 is needed; where less is missing than half, the least-norm
solution is returned and the evidence says so.

Both sides are linear in the gradient: an SGD weight delta serves as well, and the delta of several steps (momentum
included) on the *same* image is exact, too, since Σ_k Δ_kᵀ X = (Σ_k Δ_k)ᵀ X; only the rounding of the weights adds
noise. Weight decay, steps on other images and adaptive optimisers break the equations, and the checks show it.

Two checks need no truth: Σ_p Δ_p = ∂L/∂b, and G lies in the column space of Δᵀ (while P < D − 1). The first tells
whether the two gradients belong together and how noisy they are; the second fails when several images were summed.
A server that does not know the batch size asks more: nothing may be left over beyond the noise that the first shows.

Known for its B = 1 consequences from APRIL (Lu et al. 2022), whose closed form needs an attention layer of a special
kind; this one does not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

import torch

from leakscope.attacks.analytic._known_noise import informed
from leakscope.attacks.analytic._one_image import Finding, finish, gradient, refuse_batches
from leakscope.attacks.analytic._patch_system import PatchSolution, PatchSystem, solve
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.errors import NotApplicable
from leakscope.functional.patches import from_patches, range_excess
from leakscope.models import Anatomy, PatchEmbedding
from leakscope.types import Callback, Observation, Reconstruction

__all__ = ["PatchEmbeddingSolve", "linear_patch_embedding", "patch_embedding", "patch_system"]

_UNRELATED = 0.2
_SEVERAL = 0.05
_SEVERAL_HIDDEN = 1e-4
_IMPLAUSIBLE = 0.05
_SCRAPS = 0.05
_DROWNED = 0.5
_ROUNDING = 1e-5


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
        if (finding := informed(observation, system)) is not None:
            return finish(observation, finding, started)
        model = observation.model
        found = solve(system, mean=model.mean.double(), std=model.std.double(), shape=model.input.shape)
        pixels = from_patches(found.patches, model.input.shape, system.patch) * model.std.double() + model.mean.double()
        excess = range_excess(pixels)
        _refuse_garbage(system, found, excess, told=observation.input.batch_size is not None)
        known = {} if found.self_check is None else {"self-check": found.self_check}
        evidence = {
            "patches": system.count,
            "rank": found.rank,
            "condition": found.condition,
            **known,
            "residual": found.residual,
            "spare equations": found.spare,
            "noise": found.noise,
            "excess": excess,
        }
        message = _message(system, found)
        energy = max(found.residual, found.self_check or 0.0)
        return finish(observation, Finding(pixels=pixels, energy=energy, evidence=evidence, message=message), started)


@register_attack(
    "patch-embedding",
    cites="lu2022",
    leaky=Leaky(
        model={"name": "leakscope:april-b", "image_size": 16, "num_classes": 10},
        psnr=60,
    ),
)
def patch_embedding() -> PatchEmbeddingSolve:
    """One linear solve gives every patch of a single image, on any ViT with a learnable position table."""
    return PatchEmbeddingSolve()


def patch_system(observation: Observation) -> PatchSystem:
    """The gradients that make up Δᵀ X = G, or :class:`NotApplicable` with what is missing."""
    anatomy = observation.model.anatomy
    embedding = linear_patch_embedding(anatomy)
    position = anatomy.position_embedding
    if position is None:
        raise NotApplicable("This model adds no absolute position table with one row per patch to its tokens.")
    if not position.learnable and position.name not in observation.signal:
        raise NotApplicable(
            f"The position table '{position.name}' is fixed, so it has no gradient. 'patch-embedding-blind' does "
            "without one."
        )
    table = gradient(observation, position.name, "the position embedding")
    weight = gradient(observation, embedding.weight, "the patch embedding")
    bias = None
    if embedding.bias is not None and embedding.bias in observation.signal:
        bias = gradient(observation, embedding.bias, "the patch embedding's bias")
    delta = table.reshape(-1, table.shape[-1])[position.prefix_in_table :]  # (P, D)
    if delta.shape[0] != embedding.grid[0] * embedding.grid[1]:
        raise NotApplicable(f"The position table has {delta.shape[0]} rows for a grid of {embedding.grid} patches.")
    if not bool(delta.any()):
        raise NotApplicable("The position table's gradient is zero for every patch.")
    return PatchSystem(delta=delta, weight=weight, bias=bias)


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


def _message(system: PatchSystem, found: PatchSolution) -> str:
    if found.independent < system.count:
        missing = f"{system.count - found.independent} of {system.count} directions are not in the equations"
        text = f"{missing} and stay at their least norm."
    elif found.rank < system.count:
        text = f"{system.count - found.rank} of {system.count} directions drown in the noise of the position gradient."
    else:
        text = f"All {system.count} patches follow from the equations."
    off = max(found.residual, found.self_check or 0.0)
    if off > _ROUNDING:
        text += f" They hold only approximately (up to {off:.1g}): rounding, noise, weight decay or a defence."
    return text


def _refuse_garbage(system: PatchSystem, found: PatchSolution, excess: float, *, told: bool) -> None:
    """Raise where the equations do not hold: a picture that came out all the same would be no reconstruction."""
    if found.self_check is not None and found.self_check > _UNRELATED:
        raise NotApplicable(
            f"Σ Δ_p differs from ∂L/∂b by {found.self_check:.0%}: the gradients of position and patch embedding do not "
            "belong together (an adaptive optimiser's step, pruning, heavy noise, or another model's gradient)."
        )
    if 2 * found.independent < system.count:
        raise NotApplicable(
            f"The position gradient has rank {found.independent} for {system.count} patches: tokens of width "
            f"{system.delta.shape[1]} hold too few equations, or patches were dropped. At least half are needed."
        )
    if not told and found.spare == 0:
        raise NotApplicable(
            f"The batch size is hidden, and {system.count} patches use up all equations of tokens of width "
            f"{system.delta.shape[1]}: none is left over that could tell one image from several."
        )
    # A server that was told of one image puts what is left over down to noise; one that was not must first be shown
    # that noise by the bias, where several images leave no trace.
    several = found.residual > max(_SEVERAL if told else _SEVERAL_HIDDEN, 5 * (found.self_check or 0.0))
    if several or excess > _IMPLAUSIBLE:
        raise NotApplicable(
            f"The equations of a single image do not hold: {found.residual:.1%} of the patch embedding's gradient is "
            f"explained by no picture, and the best fit leaves the pixel range by {excess:.2g}. More than one image "
            "was summed, or several steps or a defence changed the signal."
        )
    if found.rank < _SCRAPS * system.count or found.noise > _DROWNED:
        raise NotApplicable(
            f"Only {found.rank} of {system.count} directions of the position gradient stand above its noise, and the "
            f"noise of the patch embedding's gradient is {found.noise:.0%} of it: nothing but a blur would come back."
        )
