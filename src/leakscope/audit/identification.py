"""Identification: does a reconstruction pick its original out of a gallery, and could that be chance?

Under the hypothesis that nothing of an image came back, its reconstruction is no nearer to it than to any picture of
the same kind: the original's place among N distractors is uniform, and P(rank ≤ r) = r / (N + 1) exactly. That holds as
far as the original could as well have been one of the distractors. For photographs the bundled ones and crops of them
stand in. For homogeneous data (digits, scans) they do not: any digit beats a thousand photographs. There the test needs
*kin*: public images of the kind, or the campaign's other originals, which must be beaten as well.

Several attempts are one test: every picture's best standardised similarity over all of them is its score (Westfall and
Young's max-T), so that trying more costs no resolution and buys no luck. So are the embeddings other than the layout;
the layout, which alone can make a picture recognisable, is tested by itself, and twice the smaller p-value counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from leakscope.metrics.iip import pixel_embedding
from leakscope.testing.bundled import bundled_images

__all__ = ["Candidate", "Gallery", "Identified", "identify", "photographs", "thumbnails"]

_SIDE: Final = 32
_CROPS: Final = (64, 80, 96, 112, 128, 144)
"""Sides of the crops out of 256 px: small enough that none shows the whole picture again."""
_PLACES: Final = 6
_SAME: Final = 0.99
"""Pictures whose layouts correlate above this are the same one, resampled or recompressed."""
_TIE: Final = 1e-9


def thumbnails(images: Tensor) -> Tensor:
    """(N, C, H, W) in float64, shrunk to at most 32 × 32; pixels that are no numbers become grey."""
    small = torch.nan_to_num(images.detach().to("cpu", torch.float64), nan=0.5, posinf=1.0, neginf=0.0).clamp(0, 1)
    return F.adaptive_avg_pool2d(small, (min(_SIDE, images.shape[2]), min(_SIDE, images.shape[3])))


# --- Embeddings: thumbnails (N, C, h, w) -> unit vectors (N, D), compared by their inner product ----------------------


def _unit(values: Tensor) -> Tensor:
    values = values - values.mean(1, keepdim=True)
    norm = values.norm(dim=1, keepdim=True)
    return torch.where(norm > 1e-6, values / norm, values * 0)


def _edges(images: Tensor) -> Tensor:
    """Where the brightness changes, whichever way."""
    grey = F.pad(images.mean(1, keepdim=True), (0, 1, 0, 1), mode="replicate")
    across, down = grey[..., :-1, 1:] - grey[..., :-1, :-1], grey[..., 1:, :-1] - grey[..., :-1, :-1]
    return _unit(F.adaptive_avg_pool2d((across.square() + down.square()).sqrt(), 16).flatten(1))


def _colours(images: Tensor) -> Tensor:
    """The colours of a 4 × 4 mosaic, as bumps of width 0.15 along each channel: near colours overlap."""
    mosaic = F.adaptive_avg_pool2d(images, 4).flatten(1)  # (N, 16 C)
    centres = torch.linspace(0, 1, 9, dtype=images.dtype)
    return _unit(torch.exp(-0.5 * ((mosaic[:, :, None] - centres) / 0.15).square()).flatten(1))


def _spectrum(images: Tensor) -> Tensor:
    """The size of each frequency: the same for a shifted picture."""
    grey = images.mean(1)
    grey = grey - grey.mean((1, 2), keepdim=True)
    size = torch.fft.rfft2(grey).abs()
    return _unit(torch.log(size + 1e-2).flatten(1)) * (grey.flatten(1).norm(dim=1, keepdim=True) > 1e-6)


_EMBEDDINGS: Final[tuple[Callable[[Tensor], Tensor], ...]] = (pixel_embedding, _edges, _colours, _spectrum)
_FAMILIES: Final = (slice(0, 1), slice(1, None))
"""The layout, and everything else."""


# --- The gallery ------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gallery:
    """Distractors by their embeddings, each (N, D); the first ``kin`` of them are of the originals' kind."""

    vectors: tuple[Tensor, ...]
    kin: int

    @staticmethod
    def of(shape: tuple[int, int, int], kin: Tensor | None = None) -> Gallery:
        """``kin`` (M, C, H, W), which may be of any size, and the bundled photographs with crops of them."""
        channels, height, width = shape
        size = (min(_SIDE, height), min(_SIDE, width))
        vectors = _photograph_vectors(channels, *size)
        if kin is None or not len(kin):
            return Gallery(vectors=vectors, kin=0)
        own = _embedded(F.adaptive_avg_pool2d(thumbnails(kin), size))
        return Gallery(vectors=tuple(torch.cat(pair) for pair in zip(own, vectors, strict=True)), kin=len(kin))

    def without(self, original: Tensor) -> Gallery:
        """The distractors that are not the original itself, (1, C, h, w)."""
        kept = (self.vectors[0] @ pixel_embedding(original)[0]) <= _SAME
        return Gallery(vectors=tuple(v[kept] for v in self.vectors), kin=int(kept[: self.kin].sum()))


def _embedded(pictures: Tensor) -> tuple[Tensor, ...]:
    return tuple(embed(pictures) for embed in _EMBEDDINGS)


@lru_cache(maxsize=8)
def _photograph_vectors(channels: int, height: int, width: int) -> tuple[Tensor, ...]:
    return _embedded(photographs(channels, height, width))


def photographs(channels: int, height: int, width: int) -> Tensor:
    """The bundled photographs, crops of them in a fixed grid, and all of these mirrored: (N, C, height, width)."""
    whole = bundled_images(channels=1 if channels == 1 else 3).double()
    if channels not in (1, 3):
        whole = whole.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    full = whole.shape[-1]
    found = [F.adaptive_avg_pool2d(whole, (height, width))]
    for side in _CROPS:
        tall, wide = round(side * min(1, height / width)), round(side * min(1, width / height))
        for down in range(_PLACES):
            for across in range(_PLACES):
                top, left = (full - tall) * down // (_PLACES - 1), (full - wide) * across // (_PLACES - 1)
                crop = whole[:, :, top : top + tall, left : left + wide]
                found.append(F.adaptive_avg_pool2d(crop, (height, width)))
    pictures = torch.cat(found)
    return torch.cat([pictures, pictures.flip(3)])


# --- The test ---------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """One attempt on the batch of an original: all its ``images`` (B, C, h, w) as thumbnails, of which ``index`` was
    matched to the original, and the images of the prior-only ``control``, where there are any."""

    images: Tensor
    index: int
    control: Tensor | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """How one attempt did. ``rank`` of the original among ``gallery`` pictures (itself among them), ``kin_rank`` among
    ``kin``; ``p_value`` over all attempts and embeddings together; correlations of the 16 × 16 layouts with the
    original's, of the reconstruction and of the control."""

    rank: int
    gallery: int
    kin_rank: int
    kin: int
    p_value: float
    correlation: float
    control_correlation: float | None


def identify(original: Tensor, candidates: Sequence[Candidate], gallery: Gallery) -> list[Identified]:
    """Put every candidate's reconstruction of ``original``, a thumbnail (C, h, w), to the test; see the module.

    Matching has picked the nearest of a batch's B images, and that is paid for in the cheaper of two ways: the p-value
    counts B times, or every distractor may be resembled by any of the B; twice the smaller counts. Where a control was
    run, the original must stand out in what the attempt adds to it, too: similarity minus the control's similarity.
    The larger of both p-values counts.
    """
    gallery = gallery.without(original[None])
    controls = [None if c.control is None else _similarities(original, c.control, gallery) for c in candidates]
    own = [_similarities(original, c.images[c.index][None], gallery) for c in candidates]  # each (E, 1 + N)
    tests = _p_values(own, controls)
    p_values = [min(1.0, 2 * min(pair)) for pair in tests]
    if (count := max(len(c.images) for c in candidates)) > 1:
        pairs = zip(own, (_similarities(original, c.images, gallery) for c in candidates), strict=True)
        shared = [torch.cat([mine[:, :1], any_of[:, 1:]], 1) for mine, any_of in pairs]
        best = [2 * min(pair) for pair in _p_values(shared, controls)]
        p_values = [min(1.0, 2 * min(count * one, other)) for one, other in zip(p_values, best, strict=True)]
    layout = pixel_embedding(original[None])[0]
    found: list[Identified] = []
    for candidate, values, pair, p_value in zip(candidates, own, tests, p_values, strict=True):
        score = _standardised(values)[_FAMILIES[int(pair[1] < pair[0])]].amax(0)  # (1 + N,), where it does better
        ahead = score[1:] >= score[0] - _TIE
        control = None if candidate.control is None else float((pixel_embedding(candidate.control) @ layout).max())
        found.append(
            Identified(
                rank=1 + int(ahead.sum()),
                gallery=len(score),
                kin_rank=1 + int(ahead[: gallery.kin].sum()),
                kin=gallery.kin,
                p_value=p_value,
                correlation=float(pixel_embedding(candidate.images)[candidate.index] @ layout),
                control_correlation=control,
            )
        )
    return found


def _similarities(original: Tensor, images: Tensor, gallery: Gallery) -> Tensor:
    """(E, 1 + N): of the original, then of every distractor, each to whichever of the images is nearest to it."""
    rows: list[Tensor] = []
    for embed, known in zip(_EMBEDDINGS, gallery.vectors, strict=True):
        vectors = embed(images)  # (B, D)
        rows.append(torch.cat([vectors @ embed(original[None]).T, vectors @ known.T], 1).amax(0))
    return torch.stack(rows)


def _p_values(values: Sequence[Tensor], controls: Sequence[Tensor | None]) -> list[tuple[float, float]]:
    """Of each attempt, by its layout and by the rest; in itself and in what it adds to its control, the larger."""
    raw = torch.stack([_standardised(value) for value in values])  # (A, E, 1 + N)
    added = torch.stack(
        [
            score if control is None else _standardised(value - control)
            for score, value, control in zip(raw, values, controls, strict=True)
        ]
    )
    layout, rest = ([max(_p(raw[:, f], i), _p(added[:, f], i)) for i in range(len(values))] for f in _FAMILIES)
    return list(zip(layout, rest, strict=True))


def _standardised(values: Tensor) -> Tensor:
    spread = values.std(1, keepdim=True, correction=0)
    return torch.where(spread > _TIE, (values - values.mean(1, keepdim=True)) / spread.clamp_min(_TIE), 0.0)


def _p(scores: Tensor, index: int) -> float:
    """The share of pictures, the original among them, whose best score anywhere reaches the original's in ``index``."""
    best = scores.amax((0, 1))  # (1 + N,)
    reached = best >= scores[index, :, 0].amax() - _TIE
    reached[0] = True
    return float(reached.double().mean())
