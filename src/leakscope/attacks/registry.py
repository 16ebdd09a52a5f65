"""Attacks by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Final

from leakscope.errors import UnknownName
from leakscope.registry import Registry
from leakscope.types import Attack

__all__ = ["ATTACKS", "attack", "register_attack"]

ATTACKS: Final[Registry[Callable[..., Attack]]] = Registry(
    "attack", "leakscope.attacks.recipes", "leakscope.attacks.analytic", "leakscope.attacks.learned"
)


def register_attack(name: str, *, cites: str) -> Callable[[Callable[..., Attack]], Callable[..., Attack]]:
    """Decorator for a function that builds a configured attack; ``cites`` is a key in the bibliography."""
    return ATTACKS.register(name, cites=cites)


def attack(name: str, /, **options: object) -> Attack:
    """The attack registered as ``name``, configured.

    Options are the recipe's own parameters (``steps``, ``tv``, …) or, beyond them, any field of the attack it makes
    (``population``, ``stop``, ``gradient``, ``workers``, …). Anything else is refused.
    """
    recipe = ATTACKS[name].value
    own = set(inspect.signature(recipe).parameters)
    made = recipe(**{key: value for key, value in options.items() if key in own})
    fields = {f.name for f in dataclasses.fields(made)} if dataclasses.is_dataclass(made) else set[str]()
    more = {key: value for key, value in options.items() if key not in own}
    for key in more:
        if key not in fields:
            raise UnknownName(f"option of {name}", key, own | fields)
    return dataclasses.replace(made, **more) if more else made  # type: ignore[type-var]
