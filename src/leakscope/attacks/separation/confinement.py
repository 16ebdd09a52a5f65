"""Where the patches of a batch must lie, from two gradients, before anything is optimised.

With T = B·P patches x_t and δ_t = ∂L/∂(token t), the patch embedding's gradient is G = Σ_t δ_t x_tᵀ. While T ≤ C·p² its
row space holds every patch: G = U S Vᵀ, x_t = V a_t, δ_t = U S b_t, and B Aᵀ = I, so that b_sᵀ a_t = [s = t].
The position table's gradient is Δ_q = Σ_i δ_(i,q), so with d_q = S⁻¹ Uᵀ Δ_q

    d_rᵀ a_(i,q) = Σ_j b_(j,r)ᵀ a_(i,q) = [q = r]:

P linear equations for every patch, whatever the network. What is left for each is an affine space of P(B − 1)
dimensions, x = o_q + (V L) y, with the same directions at every position (differences of patches that share one) and
another origin. Block 0's ∂L/∂W_qkv says the same once more, by another way, and adds nothing to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.analytic.patch_embedding import patch_system
from leakscope.errors import NotApplicable
from leakscope.functional.patches import from_patches, to_patches
from leakscope.types import Observation

__all__ = ["Confinement", "Factor", "confine", "factor"]

_BLURRED: Final = 0.5
_EPSILON: Final = float(torch.finfo(torch.float64).eps)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A gradient of known rank, U S Vᵀ: ``left`` (m, r), ``values`` (r,), ``right`` (n, r), orthonormal.

    ``gap`` is the first singular value left out over the last one kept; ``noise`` the standard deviation of an entry of
    what was left out.
    """

    left: Tensor
    values: Tensor
    right: Tensor
    gap: float
    noise: float

    @property
    def condition(self) -> float:
        return float(self.values[0] / self.values[-1])

    def off_left(self, columns: Tensor) -> Tensor:
        """Columns less what lies in the column space."""
        return columns - self.left @ (self.left.mT @ columns)

    def off_right(self, columns: Tensor) -> Tensor:
        """Columns less what lies in the row space."""
        return columns - self.right @ (self.right.mT @ columns)


def factor(matrix: Tensor, rank: int, what: str) -> Factor:
    """``matrix`` cut to a rank that it must have; ``what`` names it in the refusal."""
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    rest = s[rank:]
    spare = (matrix.shape[0] - rank) * (matrix.shape[1] - rank)
    gap = float(rest[0] / s[rank - 1]) if len(rest) and float(s[rank - 1]) > 0 else float(s[rank - 1] == 0)
    if gap > _BLURRED:
        raise NotApplicable(
            f"The gradient of {what} does not have the rank {rank} that this batch gives it: the next singular value "
            f"is {gap:.0%} of the last. Noise, half precision or a defence covers the weakest directions, or the "
            "batch is not what it seems."
        )
    noise = max(float(rest.square().sum() / max(spare, 1)) ** 0.5, _EPSILON * float(s[0]))
    return Factor(left=u[:, :rank], values=s[:rank], right=vt[:rank].mT, gap=gap, noise=noise)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """B images of P patches: the factor of G, and ``duals`` d_q as columns (T, P).

    As a decoder it maps coordinates (B, P, P(B−1)) to normalised images (B, C, H, W). ``origins`` (P, C·p²) and
    ``directions`` (P(B−1), C·p²), orthonormal, have the model's own precision.
    """

    images: int
    factor: Factor
    duals: Tensor
    origins: Tensor
    directions: Tensor
    input: tuple[int, int, int]
    patch: tuple[int, int]

    @property
    def count(self) -> int:
        """P."""
        return self.duals.shape[1]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.images, self.count, self.directions.shape[0])

    def __call__(self, free: Tensor) -> Tensor:
        """Normalised images at these coordinates."""
        return from_patches(self.origins + free @ self.directions, self.input, self.patch)

    def encode(self, inputs: Tensor) -> Tensor:
        """The coordinates nearest to normalised images."""
        return (to_patches(inputs, self.patch) - self.origins) @ self.directions.mT

    def miss(self, inputs: Tensor) -> float:
        """How far normalised images are from the space: ‖x − nearest‖ / ‖x‖."""
        return float((self(self.encode(inputs)) - inputs).norm() / inputs.norm())


def confine(observation: Observation) -> Confinement:
    """The space that the gradients of patch embedding and position table leave to the patches.

    It serves as the ``decode`` of an :class:`~leakscope.attacks.Optimisation`, which then searches nowhere else.
    """
    system = patch_system(observation)
    count, width = system.count, system.delta.shape[1]
    g = system.weight.flatten(1)  # (D, M)
    images = observation.input.batch_size or _batch_size(g, count)
    tokens = images * count
    if tokens > min(g.shape[1], width - 1):
        raise NotApplicable(
            f"{images} images of {count} patches are {tokens} tokens; patches of {g.shape[1]} numbers and tokens of "
            f"width {width} can keep at most {min(g.shape[1], width - 1)} of them apart."
        )
    found = factor(g, tokens, "the patch embedding")
    duals = (found.left / found.values).mT @ system.delta.mT  # (T, P)
    u, _, _ = torch.linalg.svd(duals, full_matrices=True)
    origins = (found.right @ torch.linalg.pinv(duals.mT)).mT  # (P, M): the shortest a with D a = e_q
    directions = (found.right @ u[:, count:]).mT  # (P(B−1), M)
    model = observation.model
    return Confinement(
        images=images,
        factor=found,
        duals=duals,
        origins=origins.to(model.dtype),
        directions=directions.to(model.dtype),
        input=model.input.shape,
        patch=system.patch,
    )


def _batch_size(g: Tensor, count: int) -> int:
    """B from the rank of G, B·P: where the singular values fall most steeply."""
    s = torch.linalg.svdvals(g).clamp_min(_EPSILON)
    falls = {b: float(s[b * count] / s[b * count - 1]) for b in range(1, (len(s) - 1) // count + 1)}
    if not falls:
        raise NotApplicable(f"The batch size is hidden, and {count} patches leave no rank to read it off.")
    return min(falls, key=lambda b: falls[b])
