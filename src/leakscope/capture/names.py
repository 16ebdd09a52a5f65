"""Names for arrays that arrive without: frameworks often send a model's state as a bare list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.models.text import as_names

__all__ = ["Arrays", "StateOrder"]

Arrays = Mapping[str, NDArray[Any]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StateOrder:
    """The shapes of a model's state dict in its order, and which of its tensors are parameters."""

    shapes: Mapping[str, tuple[int, ...]]
    parameters: tuple[str, ...]

    @staticmethod
    def of(model: VisionModel) -> StateOrder:
        return StateOrder(
            shapes={name: tuple(value.shape) for name, value in model.state_dict().items()},
            parameters=tuple(name for name, _ in model.named_parameters()),
        )

    def named(self, arrays: Arrays) -> dict[str, Tensor]:
        """The arrays as tensors under the model's names.

        Keys "0", "1", … are places in the state dict, or among its parameters alone, whichever has as many tensors.
        Every shape must agree, else nothing is guessed. Any other keys are names already.
        """
        if list(arrays) != [str(index) for index in range(len(arrays))]:
            return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        values = list(arrays.values())
        names = next((n for n in (tuple(self.shapes), self.parameters) if len(n) == len(values)), None)
        if names is None:
            raise BadInput(
                f"{len(values)} arrays came without names; the model's state has {len(self.shapes)} tensors, "
                f"{len(self.parameters)} of them parameters. Send one or the other, or arrays with names."
            )
        wrong = [
            f"array {index} is {value.shape}, {name} {self.shapes[name]}"
            for index, (name, value) in enumerate(zip(names, values, strict=True))
            if value.shape != self.shapes[name]
        ]
        if wrong:
            raise BadInput(f"The arrays do not follow the order of the model's state: {as_names(wrong)}.")
        return {name: torch.from_numpy(np.array(value)) for name, value in zip(names, values, strict=True)}
