"""One loader by string: ``timm:NAME``, ``torchvision:NAME``, ``leakscope:NAME[?option=value&…]``, ``file.py:factory``.

Nothing is ever downloaded: weights are drawn from the seed, or come from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from leakscope.errors import BadInput, UnknownName
from leakscope.models import sources
from leakscope.models.blueprint import MODELS
from leakscope.models.vision_model import VisionModel
from leakscope.models.weights import load_into, read_weights

__all__ = ["load_model"]


def load_model(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    seed: int = 0,
    weights: Path | str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> VisionModel:
    """A model by name, in evaluation mode.

    The same ``seed`` gives the same bits, whatever was drawn before; torch's global generator is left alone. What is
    ``None`` follows the model: its classes, image size, channels, and the normalisation it is trained with.
    ``weights`` is a safetensors file or a checkpoint readable with ``torch.load(weights_only=True)``.
    """
    for label, value in (("num_classes", num_classes), ("image_size", image_size), ("channels", channels)):
        if value is not None and value < 1:
            raise BadInput(f"{label} must be at least 1; got {value}.")
    source, colon, rest = name.rpartition(":") if ".py:" in name else name.partition(":")
    if not colon or not rest:
        near = f" Did you mean 'leakscope:{name}'?" if name in MODELS else ""
        raise BadInput(
            f"'{name}' names no model.{near} "
            "Write timm:NAME, torchvision:NAME, leakscope:NAME or path/to/file.py:factory."
        )
    wanted = sources.Wanted(
        num_classes=num_classes,
        image_size=image_size,
        channels=channels,
        generator=torch.Generator().manual_seed(seed),
    )
    if source.endswith(".py"):
        built = sources.from_file(Path(source), rest, wanted)
    elif source in sources.SOURCES:
        built = sources.SOURCES[source](rest, wanted)
    else:
        raise UnknownName("model source", source, [*sources.SOURCES, "path/to/file.py"])
    if weights is not None:
        load_into(built.module, read_weights(weights), source=f"'{weights}'")
    built.module.eval()
    return VisionModel(
        built.module,
        input=built.input,
        mean=built.mean if mean is None else mean,
        std=built.std if std is None else std,
        name=name,
    )
