"""Lets torchvision (and timm, which imports it) be imported where its compiled operators cannot be loaded.

A torchvision wheel built for CUDA, installed over a CPU-only torch, cannot load its compiled library. It then fails at
import with ``operator torchvision::nms does not exist``, because it describes operators that nobody defined. Whoever
installs both packages from a plain package index meets this. :func:`ensure` defines what is missing, and only then:

- it first asks for the real operators, loading the compiled library the way torchvision itself would;
- if they are there, nothing is registered and nothing is overridden;
- if not, the schemas of ``nms`` and ``qnms`` are defined, and ``nms`` gets a plain, working CPU implementation.

Call it before importing torchvision or timm::

    from leakscope._torchvision_ops import ensure

    ensure()
    import torchvision
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["ensure", "nms"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# torch forgets a library's registrations when the Library object is collected, so it is kept for the whole process.
_kept: list[torch.library.Library] = []


def ensure(*, detection: bool = False) -> bool:
    """Define torchvision's missing operators, if they are missing; calling it again is free.

    With ``detection``, ``torchvision.ops.nms`` is also made to use the implementation given here: torchvision refuses
    to call any operator unless its own compiled library was loaded. That imports torchvision.

    Returns whether this process runs on the replacement (``False``: the real operators are there, or no torchvision).
    """
    if not _kept and not _real_operators():
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            if not _defined(schema.partition("(")[0]):
                library.define(schema)
        library.impl("nms", nms, "CPU")
        _kept.append(library)
    if detection and _kept:
        boxes = importlib.import_module("torchvision.ops.boxes")
        boxes._assert_has_ops = _operators_are_here  # pyright: ignore[reportAttributeAccessIssue]
    return bool(_kept)


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Greedy non-maximum suppression: indices (M,) of the kept boxes, best score first.

    ``dets`` are corner boxes (N, 4) as x₁, y₁, x₂, y₂; ``scores`` is (N,). A box goes when its intersection over union
    with a kept, better one exceeds ``iou_threshold``. Equal scores keep their order.
    """
    order = scores.sort(stable=True, descending=True).indices
    boxes = dets[order].double()
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])  # (N, N, 2)
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    overlaps = shared / (area[:, None] + area[None, :] - shared) > iou_threshold
    alive = torch.ones(len(order), dtype=torch.bool)
    for i in range(len(order)):
        if alive[i]:
            alive[i + 1 :] &= ~overlaps[i, i + 1 :]
    return order[alive]


def _operators_are_here() -> None:
    """Stands in for torchvision's own check, which looks for its compiled library only."""


def _defined(operator: str) -> bool:
    return hasattr(torch.ops.torchvision, operator)


def _real_operators() -> bool:
    """Whether torchvision's operators exist, or come to exist by loading its compiled library, or nobody needs them."""
    if _defined("nms"):
        return True
    package = importlib.util.find_spec("torchvision")
    if package is None or package.origin is None:
        return True
    loader = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    library = importlib.machinery.FileFinder(str(Path(package.origin).parent), loader).find_spec("_C")
    if library is None or library.origin is None:
        return False
    try:
        torch.ops.load_library(library.origin)
    except (OSError, ImportError):
        return False
    return _defined("nms")
