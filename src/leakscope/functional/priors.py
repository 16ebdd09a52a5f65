"""Image priors: what makes (B, C, H, W) images look natural. Each returns a scalar."""

from __future__ import annotations

from torch import Tensor
from torch.linalg import vector_norm

__all__ = ["l2_norm", "patch_joints", "total_variation", "total_variation_l2"]


def total_variation(images: Tensor) -> Tensor:
    """mean|∂_w x| + mean|∂_h x|: the anisotropic form of Inverting Gradients and the feasibility study."""
    across = images[..., :, 1:] - images[..., :, :-1]
    down = images[..., 1:, :] - images[..., :-1, :]
    return across.abs().mean() + down.abs().mean()


def total_variation_l2(images: Tensor) -> Tensor:
    """Σ over four directions of ‖∂ x‖₂, unsquared, diagonals included (DeepInversion, GradInversion, GradViT)."""
    across = images[..., :, 1:] - images[..., :, :-1]
    down = images[..., 1:, :] - images[..., :-1, :]
    falling = images[..., 1:, 1:] - images[..., :-1, :-1]
    rising = images[..., :-1, 1:] - images[..., 1:, :-1]
    return across.norm() + down.norm() + falling.norm() + rising.norm()


def l2_norm(images: Tensor) -> Tensor:
    """The mean over images of ‖x‖₂ (DeepInversion's l2 prior)."""
    return images.flatten(1).norm(dim=1).mean()


def patch_joints(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Σ_k ‖x[pk, :] − x[pk−1, :]‖₂ + Σ_k ‖x[:, qk] − x[:, qk−1]‖₂ over the joints of p × q patches (GradViT, Eq. 8).

    Each norm is over the whole joint: the batch, the channels, and every pixel along it. Zero for a single patch.
    """
    p, q = patch
    across = images[..., p::p, :] - images[..., p - 1 : -1 : p, :]  # (B, C, joints, W)
    along = images[..., q::q] - images[..., q - 1 : -1 : q]  # (B, C, H, joints)
    return vector_norm(across, dim=(0, 1, 3)).sum() + vector_norm(along, dim=(0, 1, 2)).sum()
