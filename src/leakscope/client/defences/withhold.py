"""Withholding: some parameters' part of the update is never sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, final

import torch

from leakscope.client.registry import register_defence
from leakscope.errors import BadInput, UnknownName
from leakscope.models import VisionModel
from leakscope.types import Defence, Setting, Signal

__all__ = ["ROLES", "Withhold"]


@final
@register_defence("withhold", cites="lu2022")
@dataclass(frozen=True, slots=True, kw_only=True)
class Withhold(Defence):
    """Never sends the named parameters: roles (position-embedding, first-layer, all-but-head) or name patterns.

    ``what`` is a role, a parameter's name or a pattern (``blocks.0.*``), or several of them. What the client keeps to
    itself it can still train with.
    """

    what: str | tuple[str, ...] = "position-embedding"

    def __post_init__(self) -> None:
        asked: list[object] = [self.what] if isinstance(self.what, str) else list(self.what)
        if not asked or not all(isinstance(one, str) and one for one in asked):
            raise BadInput(f"what is {self.what!r}; give a role ({', '.join(ROLES)}), a name or a pattern, or several.")
        object.__setattr__(self, "what", tuple(asked))

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        kept = self.withheld(setting.model)
        return {name: value for name, value in signal.items() if name not in kept}

    def withheld(self, model: VisionModel) -> frozenset[str]:
        """The names of what is not sent, for this model."""
        names = [name for name, _ in model.named_parameters()]
        found: set[str] = set()
        for one in self.what:
            matching = ROLES[one](model) if one in ROLES else {n for n in names if fnmatchcase(n, one)}
            if not matching:
                raise UnknownName(f"role or parameter of {model.name}", one, [*ROLES, *names])
            found |= matching
        return frozenset(found)


def _position(model: VisionModel) -> set[str]:
    position = model.anatomy.position_embedding
    if position is None:
        raise BadInput(f"{model.name} has no position embedding that is known, so none can be withheld.")
    return {position.name}


def _first_layer(model: VisionModel) -> set[str]:
    layer = model.anatomy.first_layer
    if layer is None:
        raise BadInput(f"The first layer of {model.name} is not known; name its parameters instead.")
    return {name for name in (layer.weight, layer.bias) if name}


def _all_but_head(model: VisionModel) -> set[str]:
    head = model.anatomy.classifier
    if head is None:
        raise BadInput(f"The classifier of {model.name} is not known; name the other parameters instead.")
    own = {head.weight, head.bias}
    return {name for name, _ in model.named_parameters() if name not in own}


ROLES: Final[Mapping[str, Callable[[VisionModel], set[str]]]] = {
    "position-embedding": _position,
    "first-layer": _first_layer,
    "all-but-head": _all_but_head,
}
"""What parameters are for, by the model's anatomy."""
