"""Our own models by name: what to build, and what images it takes unless told otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_type_hints

import torch
from torch import nn

from leakscope.errors import BadInput, UnknownName
from leakscope.random import global_draws
from leakscope.registry import Registry

__all__ = [
    "CIFAR10",
    "IDENTITY",
    "IMAGENET",
    "INCEPTION",
    "MODELS",
    "Blueprint",
    "Normalisation",
    "list_models",
    "model",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """Per-channel mean and std that a model subtracts and divides by, written for three channels."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def for_channels(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The same for one channel (the mean of the three) or any other number (repeated)."""
        if channels == 3:
            return self.mean, self.std
        return (sum(self.mean) / 3,) * channels, (sum(self.std) / 3,) * channels


IDENTITY = Normalisation(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
IMAGENET = Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
INCEPTION = Normalisation(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
CIFAR10 = Normalisation(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """A factory and the images its models are made for.

    The factory takes the keywords ``num_classes``, ``image_size`` and ``channels``, and options of its own with
    defaults; it draws its weights from torch's global generator, which :meth:`build` replaces for that while.
    """

    factory: Callable[..., nn.Module]
    image_size: int = 32
    channels: int = 3
    num_classes: int = 10
    normalisation: Normalisation = field(default=IDENTITY)

    def build(
        self,
        *,
        generator: torch.Generator,
        num_classes: int | None = None,
        image_size: int | None = None,
        channels: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> nn.Module:
        """A new module whose every random weight follows from ``generator``."""
        known = self.options()
        parsed: dict[str, object] = {}
        for key, text in (options or {}).items():
            if key not in known:
                raise UnknownName("model option", key, known)
            parsed[key] = _parsed(key, text, known[key])
        with global_draws(generator):
            return self.factory(
                num_classes=num_classes or self.num_classes,
                image_size=image_size or self.image_size,
                channels=channels or self.channels,
                **parsed,
            )

    def options(self) -> dict[str, object]:
        """The factory's own keywords and their types."""
        hints = get_type_hints(self.factory)
        shared = {"num_classes", "image_size", "channels"}
        return {k: hints[k] for k in inspect.signature(self.factory).parameters if k not in shared}


MODELS: Registry[Blueprint] = Registry("model", "leakscope.models.zoo")


def model(
    name: str,
    *,
    cites: str | None = None,
    image_size: int = 32,
    channels: int = 3,
    num_classes: int = 10,
    normalisation: Normalisation = IDENTITY,
) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Decorator: ``leakscope:name`` builds this; the docstring's first line is shown to users."""

    def enter(factory: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        blueprint = Blueprint(
            factory=factory,
            image_size=image_size,
            channels=channels,
            num_classes=num_classes,
            normalisation=normalisation,
        )
        line = (factory.__doc__ or "").strip().partition("\n")[0]
        if not line:
            raise ValueError(f"The model '{name}' needs a docstring: its first line is shown to users.")
        MODELS.add(name, blueprint, cites=cites, summary=line)
        return factory

    return enter


def list_models() -> list[tuple[str, str, str | None]]:
    """Our own models as rows: the name to load them by, one line about each, the paper's key."""
    return [(f"leakscope:{entry.name}", entry.summary, entry.cites) for entry in MODELS.values()]


def _parsed(key: str, text: str, kind: object) -> object:
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
        if kind == tuple[int, ...]:
            return tuple(int(part) for part in text.split(",") if part)
    except ValueError as error:
        raise BadInput(f"The model option '{key}={text}' is not of type {getattr(kind, '__name__', kind)}.") from error
    if kind is bool:
        if text.lower() not in {"true", "false"}:
            raise BadInput(f"The model option '{key}={text}' must be true or false.")
        return text.lower() == "true"
    return text
