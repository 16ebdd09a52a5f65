"""Weights from files nobody has to trust: safetensors, or torch's weights-only reader. Pickled code is never run."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakscope.errors import BadInput
from leakscope.models.text import as_names

__all__ = ["load_into", "read_weights"]

_NESTS = ("state_dict", "model", "model_state_dict")
_PREFIX = "module."
_COUNTER = "num_batches_tracked"


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by name; ``state_dict``/``model`` nesting and a ``module.`` prefix are undone."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"There is no weights file '{path}'.")
    if path.suffix == ".safetensors":
        try:
            return _stripped(load_file(path))
        except (SafetensorError, OSError, ValueError) as error:
            raise BadInput(f"'{path}' is not a readable safetensors file: {error}") from error
    return _stripped(_tensors(_weights_only(path), path))


def load_into(module: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Copy a complete state into ``module``; nothing is written unless all of it fits.

    Raises :class:`BadInput` naming what is missing, unexpected, of the wrong shape or not finite. BatchNorm's batch
    counters may be absent: they have no influence on any output.
    """
    own = module.state_dict()
    missing = [k for k in own if k not in state and not k.endswith(_COUNTER)]
    unexpected = [k for k in state if k not in own]
    shapes = [
        f"{k} is {tuple(state[k].shape)}, the model's {tuple(own[k].shape)}"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    problems = [
        f"{label}: {as_names(found)}"
        for label, found in (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", shapes))
        if found
    ]
    if problems:
        raise BadInput(f"{source} does not fit the model. {'; '.join(problems)}.")
    broken = [k for k, v in state.items() if v.is_floating_point() and not bool(torch.isfinite(v).all())]
    if broken:
        raise BadInput(f"{source} holds NaN or infinite values in {as_names(broken)}.")
    module.load_state_dict(dict(state), strict=False)


def _weights_only(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # advice to torch's developers about foreign pickles
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "nsupported" not in str(error):
            raise BadInput(f"'{path}' is not a readable weights file.") from error
        raise BadInput(
            f"'{path}' holds more than plain weights, and reading it could run code, so it was not read. "
            f"Save its state_dict as safetensors, or with torch.save. ({_first_line(error)})"
        ) from error
    except Exception as error:  # random bytes make torch's reader raise almost anything
        raise BadInput(f"'{path}' is not a readable weights file: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


def _tensors(content: object, path: Path) -> dict[str, Tensor]:
    """The mapping from names to tensors inside a checkpoint."""
    if isinstance(content, Mapping):
        entries = cast("Mapping[object, object]", content)
        for nest in _NESTS:
            inner = entries.get(nest)
            if isinstance(inner, Mapping):
                return _tensors(cast("Mapping[object, object]", inner), path)
        tensors = {str(k): v for k, v in entries.items() if isinstance(v, Tensor)}
        if tensors and len(tensors) == len(entries):
            return tensors
        others = [str(k) for k, v in entries.items() if not isinstance(v, Tensor)]
        raise BadInput(f"'{path}' is not a mapping from names to tensors: {as_names(others) or 'it is empty'}.")
    raise BadInput(f"'{path}' holds a {type(content).__name__}, not a mapping from names to tensors.")


def _stripped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    if state and all(k.startswith(_PREFIX) for k in state):
        return {k.removeprefix(_PREFIX): v for k, v in state.items()}
    return state
