"""Our YOLOv8: its numbered modules that hold weights, the head left out."""

from __future__ import annotations

from dataclasses import replace

from leakscope.models.anatomy import Anatomy
from leakscope.models.families import family
from leakscope.models.subject import Subject

__all__ = ["yolo"]


@family("leakscope.models.zoo.yolov8.Yolo")
def yolo(subject: Subject) -> Anatomy:
    """``model.0`` … ``model.21``, without upsampling, joins and pools, which have no weights."""
    *before, _ = subject.children("model")
    blocks = tuple(name for name in before if any(True for _ in subject.module.get_submodule(name).parameters()))
    return replace(subject.found, family="yolo", blocks=blocks)
