"""MaxViT of timm: a convolutional stem, then blocks that convolve before they attend in windows and in grids."""

from __future__ import annotations

from dataclasses import replace

from leakscope.models.anatomy import Anatomy
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["timm_maxvit"]


@family("timm.models.maxxvit.MaxxVit")
def timm_maxvit(subject: Subject) -> Anatomy:
    """timm's MaxViT and CoAtNet: ``stages.i.blocks.j`` behind a stem of two convolutions; no patches, no table."""
    blocks = tuple(b for stage in subject.children("stages") for b in subject.children(f"{stage}.blocks"))
    return subject.noted(
        replace(subject.found, family="maxvit", blocks=blocks),
        "Attention comes after convolutions and sees no patch of the image: there is no patch embedding.",
    )
