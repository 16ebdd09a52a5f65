"""Image identifiability: can the original be picked out of a gallery, given the reconstruction?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.errors import BadInput
from leakscope.metrics.base import ImageShape, as_pairs, image_shape, metric
from leakscope.testing.bundled import bundled_images

__all__ = ["Embedding", "iip", "iip_chance", "pixel_embedding"]

Embedding = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) in [0, 1] → vectors (N, D), compared by Euclidean distance."""

_SIDE = 16
# Unit vectors this close (correlation above 0.99) show the same picture, only resampled or recompressed.
_SAME = 0.02
_MARGIN = 1e-9


def pixel_embedding(images: Tensor) -> Tensor:
    """Pixels shrunk to 16 × 16, mean removed, unit length: (N, C, H, W) → (N, C·256).

    Its squared Euclidean distance is 2 − 2 × the correlation of the small images. A constant image becomes 0.
    """
    small = F.adaptive_avg_pool2d(images, (min(_SIDE, images.shape[2]), min(_SIDE, images.shape[3]))).flatten(1)
    small = small - small.mean(1, keepdim=True)
    norm = small.norm(dim=1, keepdim=True)
    # Averaging leaves some 1e-16 of rounding in a constant image; blown up to unit length it would look like a picture.
    return torch.where(norm > _MARGIN, small / norm, small * 0)


def iip_chance(truth: Tensor, gallery: Tensor | None = None) -> float:
    """The share that guessing would reach: one over the number of pictures to choose from."""
    return 1.0 / (len(truth) + len(_others(truth.detach().to("cpu", torch.float64), gallery)))


@metric("iip", higher_is_better=True, cites="yin2021", chance=iip_chance)
def iip(
    reconstruction: Tensor, truth: Tensor, *, gallery: Tensor | None = None, embed: Embedding = pixel_embedding
) -> Tensor:
    """Identification: 1 where the nearest picture in a gallery is the image's own original, else 0.

    (B, C, H, W) twice → (B,) float64; the mean over images is the image identifiability precision (Yin et al. 2021).

    Args:
        gallery: distractors (N, C, H, W) beside the batch's originals, which always take part. By default the bundled
            photographs at the images' size. Distractors that all but coincide with an original are left out.
        embed: the space in which pictures are compared. By default :func:`pixel_embedding`; a face or object network
            makes the metric sharper.

    An original must be strictly nearer than every other picture, so a blank reconstruction identifies nothing; copies
    of the same original do not compete with one another. NaN where the reconstruction is not finite.
    """
    left, right = as_pairs(reconstruction, truth)
    usable = torch.isfinite(left).flatten(1).all(1)
    left = torch.where(usable.view(-1, 1, 1, 1), left, 0.0)
    pictures = torch.cat([right, _others(right, gallery)])  # (B + N, C, H, W)
    vectors, known = _embedded(embed, left), _embedded(embed, pictures)
    distance = _squared(vectors, known)  # (B, B + N)
    own = distance.diagonal().clone()  # (B,)
    copies = _squared(known[: len(right)], known) <= _MARGIN  # (B, B + N), true on the diagonal
    nearest_other = distance.masked_fill(copies, float("inf")).amin(1)
    hit = (own < nearest_other - _MARGIN).to(torch.float64)
    return torch.where(usable, hit, float("nan"))


def _embedded(embed: Embedding, images: Tensor) -> Tensor:
    vectors = embed(images).detach().to("cpu", torch.float64)
    if vectors.ndim != 2 or len(vectors) != len(images):
        raise BadInput(f"An embedding must turn {len(images)} images into (N, D) vectors; got {tuple(vectors.shape)}.")
    return vectors


def _squared(left: Tensor, right: Tensor) -> Tensor:
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square()


def _others(truth: Tensor, gallery: Tensor | None) -> Tensor:
    """The distractors: pictures of the originals' shape that are not themselves an original."""
    if gallery is None:
        gallery = _photographs(image_shape(truth))
    if gallery.ndim != 4 or gallery.shape[1:] != truth.shape[1:]:
        raise BadInput(
            f"The gallery must hold images of the originals' shape {tuple(truth.shape[1:])}; got "
            f"{tuple(gallery.shape)}. Resize it first."
        )
    gallery = gallery.detach().to("cpu", torch.float64)
    if not len(gallery):
        return gallery
    distance = _squared(pixel_embedding(gallery), pixel_embedding(truth)).amin(1)  # (N,)
    return gallery[distance > _SAME]


def _photographs(shape: ImageShape) -> Tensor:
    channels, height, width = shape
    photographs = bundled_images(size=max(height, width), channels=1 if channels == 1 else 3)
    if channels not in (1, 3):
        # Some sensors have two or four channels; grey copies of the photographs still serve as distractors.
        photographs = photographs.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    return F.adaptive_avg_pool2d(photographs.to(torch.float64), (height, width))
