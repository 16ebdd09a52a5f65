"""Adapters: one file per model family, found by the class of the module.

An adapter takes a :class:`Subject` (the module, its images, what the forward passes showed, the anatomy found so far)
and returns the anatomy with the family's own meaning filled in. It is entered under the full name of the class it
describes, so neither timm nor torchvision is imported to look a model up; subclasses are found through their parents.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from leakscope.models.anatomy import Anatomy, Classifier
from leakscope.models.probe import Probe, probe
from leakscope.models.subject import Subject

__all__ = ["Adapter", "family", "find_anatomy"]

Adapter = Callable[[Subject], Anatomy]

_ADAPTERS: dict[str, Adapter] = {}
_opened: list[bool] = []


def family(*classes: str) -> Callable[[Adapter], Adapter]:
    """Decorator: the adapter for these classes (``"package.module.Class"``) and everything derived from them."""

    def enter(adapter: Adapter) -> Adapter:
        for name in classes:
            if name in _ADAPTERS:
                raise ValueError(f"There is already an adapter for '{name}'.")
            _ADAPTERS[name] = adapter
        return adapter

    return enter


def find_anatomy(module: nn.Module, shape: tuple[int, int, int], num_classes: int) -> Anatomy:
    """Look at a classifier or detector of (C, H, W) images: run it a few times, then ask its family's adapter.

    Raises :class:`~leakscope.errors.BadInput` when it is neither, or takes other images.
    """
    seen = probe(module, shape, num_classes)
    subject = Subject(module=module, shape=shape, seen=seen, found=_generic(module, seen))
    adapter = _adapter(type(module))
    if adapter is not None:
        return adapter(subject)
    return subject.noted(
        subject.found,
        f"No adapter knows {type(module).__name__}, so embeddings, attention and blocks are not described.",
    )


def _generic(module: nn.Module, seen: Probe) -> Anatomy:
    """What holds for any module."""
    bare = Subject(module=module, shape=(0, 0, 0), seen=seen, found=Anatomy())
    classifier = None
    if seen.classifier is not None:
        head = bare.layer(seen.classifier)
        classifier = Classifier(weight=head.weight, bias=head.bias, module=head.module)
    return replace(
        bare.found,
        classifier=classifier,
        first_layer=None if seen.first_layer is None else bare.layer(seen.first_layer),
        norms={n: type(m).__name__ for n, m in module.named_modules() if _is_norm(m)},
        stochastic=seen.stochastic,
        mixes_samples=seen.mixes_samples,
        mixes_in_evaluation=seen.mixes_in_evaluation,
        notes=seen.notes,
    )


def _is_norm(m: nn.Module) -> bool:
    kind = type(m).__name__.lower()
    return ("norm" in kind and any(True for _ in m.named_parameters(recurse=False))) or isinstance(m, _NORMS)


_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)  # pyright: ignore[reportPrivateUsage]


def _adapter(kind: type[nn.Module]) -> Adapter | None:
    if not _opened:
        _opened.append(True)
        for found in pkgutil.iter_modules(__path__):
            importlib.import_module(f"{__name__}.{found.name}")
    names = (f"{parent.__module__}.{parent.__qualname__}" for parent in kind.__mro__)
    return next((_ADAPTERS[name] for name in names if name in _ADAPTERS), None)
