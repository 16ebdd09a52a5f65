"""RepVGG and its kin of timm (MobileOne, GENet, …): one class, built from a list of block kinds."""

from __future__ import annotations

from dataclasses import replace

from leakscope.models.anatomy import Anatomy
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["timm_byobnet"]


@family("timm.models.byobnet.ByobNet")
def timm_byobnet(subject: Subject) -> Anatomy:
    """A stem, then stages ``stages.i`` of blocks ``stages.i.j``."""
    blocks = tuple(b for stage in subject.children("stages") for b in subject.children(stage))
    return replace(subject.found, family="byobnet", blocks=blocks)
