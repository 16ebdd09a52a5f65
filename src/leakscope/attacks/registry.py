"""Attacks by name, and for each a target that is known to leak to it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from leakscope.errors import BadInput, UnknownName
from leakscope.registry import Registry
from leakscope.types import Attack, Knows

__all__ = ["ATTACKS", "Leaky", "attack", "known_to_leak", "register_attack"]

ATTACKS: Final[Registry[Callable[..., Attack]]] = Registry(
    "attack",
    "leakscope.attacks.recipes",
    "leakscope.attacks.analytic",
    "leakscope.attacks.separation",
    "leakscope.attacks.learned",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Leaky:
    """A target that is known to leak to an attack: its self-test, small enough for a few seconds on one core.

    ``model``, ``images``, ``client``, ``knows`` and ``public`` are plain data as in a campaign's cell. ``options`` take
    the place of the user's own where they only cost time (``steps``): the rest of the user's settings is what is being
    tested. ``psnr`` is the bar, in dB, that every image must reach; set it well below what is measured, and well above
    what comes out without a leak.
    """

    model: Mapping[str, Any]
    psnr: float
    images: Mapping[str, Any] = field(default_factory=lambda: {"from": ["bundled:cat"], "batch_size": 1})
    client: Mapping[str, Any] = field(default_factory=lambda: {"type": "fedsgd", "mode": "eval"})
    knows: tuple[str, ...] = (Knows.BATCH_SIZE.value, Knows.HYPERPARAMETERS.value)
    public: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.psnr > 15:
            # The best single grey reaches 10 to 15 dB on photographs: a bar below that would be no test.
            raise BadInput(f"psnr is {self.psnr}; a self-test must ask for more than 15 dB, which a blank can reach.")

    def settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options under which an attack configured with ``options`` is put to this test."""
        return {**options, **self.options}


_LEAKY: Final[dict[str, Leaky | None]] = {}


def register_attack(
    name: str, *, cites: str, leaky: Leaky | None = None
) -> Callable[[Callable[..., Attack]], Callable[..., Attack]]:
    """Decorator for a function that builds a configured attack; ``cites`` is a key in the bibliography.

    ``leaky`` is a target this attack must get through on; without one it has no self-test, and its finding nothing is
    no evidence of anything.
    """

    def enter(recipe: Callable[..., Attack]) -> Callable[..., Attack]:
        entered = ATTACKS.register(name, cites=cites)(recipe)
        _LEAKY[name] = leaky
        return entered

    return enter


def known_to_leak(name: str) -> Leaky | None:
    """The target that is known to leak to the attack registered as ``name``, or ``None`` where none is known."""
    return _LEAKY[ATTACKS[name].name]


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
