"""Where models come from: timm, torchvision, our own zoo, or a factory in the user's file. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypedDict, cast

import torch
from torch import Tensor, nn

from leakscope._torchvision_ops import ensure
from leakscope.errors import BadInput, UnknownName
from leakscope.models.blueprint import IMAGENET, MODELS
from leakscope.models.vision_model import VisionModel
from leakscope.random import global_draws
from leakscope.registry import named_options
from leakscope.types import InputSpec

__all__ = [
    "SOURCES",
    "Built",
    "Wanted",
    "from_file",
    "from_timm",
    "from_torchvision",
    "from_zoo",
    "run_file",
    "user_files",
]

_USER = "leakscope_user_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asked for; ``None`` leaves it to the model."""

    num_classes: int | None
    image_size: int | None
    channels: int | None
    generator: torch.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A new module, the images it takes and the normalisation it expects."""

    module: nn.Module
    input: InputSpec
    mean: tuple[float, ...]
    std: tuple[float, ...]


class _TimmConfig(TypedDict):
    """The part of timm's configuration of a model that is read here."""

    input_size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def from_zoo(name: str, wanted: Wanted) -> Built:
    """One of our own models; options follow a question mark: ``mlp?hidden=256,256&activation=tanh``."""
    name, options = named_options(name, "model")
    blueprint = MODELS[name].value
    size, channels = wanted.image_size or blueprint.image_size, wanted.channels or blueprint.channels
    classes = wanted.num_classes or blueprint.num_classes
    module = blueprint.build(
        generator=wanted.generator, num_classes=classes, image_size=size, channels=channels, options=options
    )
    mean, std = blueprint.normalisation.for_channels(channels)
    return Built(module=module, input=InputSpec(shape=(channels, size, size), num_classes=classes), mean=mean, std=std)


def from_timm(name: str, wanted: Wanted) -> Built:
    """An untrained timm model; image size and normalisation from its own configuration unless told."""
    timm = _library("timm")
    if not timm.is_model(name):
        raise UnknownName("timm model", name, timm.list_models())
    options: dict[str, object] = {"pretrained": False}
    if wanted.num_classes is not None:
        options["num_classes"] = wanted.num_classes
    if wanted.channels is not None:
        options["in_chans"] = wanted.channels
    module = _sized(lambda extra: timm.create_model(name, **options, **extra), "img_size", wanted)
    config = cast("_TimmConfig", module.pretrained_cfg)
    channels, height, width = config["input_size"]
    channels = wanted.channels or channels
    height, width = (wanted.image_size, wanted.image_size) if wanted.image_size else (height, width)
    mean, std = config["mean"], config["std"]
    if len(mean) != channels:
        mean, std = (sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels
    shape = (channels, height, width)
    return Built(module=module, input=_spec(module, shape, wanted.num_classes), mean=mean, std=std)


def from_torchvision(name: str, wanted: Wanted) -> Built:
    """An untrained torchvision classifier with ImageNet's normalisation."""
    models = _library("torchvision.models")
    known: list[str] = models.list_models(module=models)
    if name not in known:
        raise UnknownName("torchvision model", name, known)
    if wanted.channels not in (None, 3):
        raise BadInput(f"torchvision models take 3 channels; got channels={wanted.channels}.")
    options: dict[str, object] = {"weights": None}
    if wanted.num_classes is not None:
        options["num_classes"] = wanted.num_classes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # GoogLeNet and Inception announce a new default initialiser
        module = _sized(lambda extra: models.get_model(name, **options, **extra), "image_size", wanted)
    size = wanted.image_size or (299 if name == "inception_v3" else 224)
    spec = _spec(module, (3, size, size), wanted.num_classes)
    return Built(module=module, input=spec, mean=IMAGENET.mean, std=IMAGENET.std)


def from_file(path: Path, factory: str, wanted: Wanted) -> Built:
    """What ``factory`` in the user's own file returns: an ``nn.Module``, or a :class:`VisionModel` as it is.

    The file is run. The factory is given those of ``num_classes``, ``image_size``, ``channels`` and ``generator`` that
    it names and the user set. A bare module is taken for ImageNet's normalisation, at 224 px unless told.
    """
    if not path.is_file():
        raise BadInput(f"There is no file '{path}'.")
    loaded = run_file(path)
    make = getattr(loaded, factory, None)
    if not callable(make):
        known = [n for n, v in vars(loaded).items() if callable(v) and not n.startswith("_")]
        raise UnknownName(f"factory in '{path}'", factory, known)
    named = inspect.signature(make).parameters
    offered = {k: getattr(wanted, k) for k in ("num_classes", "image_size", "channels", "generator")}
    with global_draws(wanted.generator):
        made = make(**{k: v for k, v in offered.items() if k in named and v is not None})
    if isinstance(made, VisionModel):
        _, height, _ = made.input.shape
        if wanted.num_classes not in (None, made.input.num_classes) or wanted.image_size not in (None, height):
            raise BadInput(f"'{factory}' made a model for {made.input}; it cannot be given another size here.")
        mean, std = (tuple(float(v) for v in t.flatten()) for t in (made.mean, made.std))
        return Built(module=made.module, input=made.input, mean=mean, std=std)
    if not isinstance(made, nn.Module):
        raise BadInput(f"'{factory}' must return an nn.Module or a VisionModel; it returned a {type(made).__name__}.")
    channels, size = wanted.channels or 3, wanted.image_size or 224
    mean, std = IMAGENET.for_channels(channels)
    return Built(module=made, input=_spec(made, (channels, size, size), wanted.num_classes), mean=mean, std=std)


SOURCES: dict[str, Callable[[str, Wanted], Built]] = {
    "leakscope": from_zoo,
    "timm": from_timm,
    "torchvision": from_torchvision,
}


def _library(name: str) -> ModuleType:
    ensure()
    return importlib.import_module(name)


def _sized(make: Callable[[dict[str, int]], nn.Module], keyword: str, wanted: Wanted) -> nn.Module:
    """Build at the wanted size; families that take any size have no such keyword and say so."""
    with global_draws(wanted.generator):
        if wanted.image_size is not None:
            try:
                return make({keyword: wanted.image_size})
            except TypeError as error:
                if keyword not in str(error):
                    raise
            except (AssertionError, ValueError) as error:
                raise BadInput(f"This model cannot be built for {wanted.image_size} px: {error}") from error
    with global_draws(wanted.generator):
        return make({})


def _spec(module: nn.Module, shape: tuple[int, int, int], num_classes: int | None) -> InputSpec:
    """The input as described, the classes counted by running the module once when nobody named them."""
    if num_classes is None:
        num_classes = getattr(module, "num_classes", None)
    if not isinstance(num_classes, int):
        like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(()))
        flags = [(m, m.training) for m in module.modules()]
        module.eval()
        try:
            with torch.no_grad():
                output: object = module(torch.zeros((1, *shape)).to(like))
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            raise BadInput(
                f"The model could not be run on a (1, {', '.join(map(str, shape))}) image: {error}"
            ) from error
        finally:
            for m, flag in flags:
                m.training = flag
        num_classes = output.shape[-1] if isinstance(output, Tensor) and output.ndim == 2 else 1
    return InputSpec(shape=shape, num_classes=num_classes)


def user_files() -> tuple[Path, ...]:
    """The files that models were made from: another process must run them too before it can receive such a model."""
    modules = [module for name, module in sys.modules.items() if name.startswith(_USER)]
    return tuple(Path(module.__file__) for module in modules if module.__file__)


def run_file(path: Path) -> ModuleType:
    """Run a user's Python file as a module that can be found again by its name, here and in other processes."""
    name = f"{_USER}{path.stem}_{hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"'{path}' is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes defined there must be found again, to copy or send the model
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BadInput(f"Running '{path}' failed: {type(error).__name__}: {error}") from error
    return module
