"""What a tuner may vary: a range or a choice for each option of an attack, by the option's name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final, get_args

from leakscope.attacks import ATTACKS
from leakscope.attacks.configure import options_of
from leakscope.errors import BadInput, UnknownName
from leakscope.plain import Mismatch, convert

if TYPE_CHECKING:
    import optuna

__all__ = ["DEFAULT_RANGES", "PRESETS", "Choice", "Range", "Space", "default_space", "space_from_text", "suggest"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; ``log``: evenly over orders of magnitude."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise BadInput(f"The range {self.low:g}:{self.high:g} is empty: the first number must be the smaller one.")
        if self.log and self.low <= 0:
            raise BadInput(f"The range {self.low:g}:{self.high:g}:log must lie above 0, as logarithms do.")

    def holds(self, value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]

    def holds(self, value: object) -> bool:
        return value in self.values


Space = Mapping[str, Range | Choice]

DEFAULT_RANGES: Final[Mapping[str, Range]] = {
    "tv": Range(low=1e-6, high=1e-1, log=True),
    "lr": Range(low=1e-4, high=1e2, log=True),
    "alpha": Range(low=1e-4, high=1e1, log=True),
    "decay": Range(low=0.0, high=4.0),
}
"""By the option's name. Any other weight of a recipe is searched two orders of magnitude around its default."""


PRESETS: Final[Mapping[str, Space]] = {
    # Valadi et al. 2025, Appendix A.1; their ranges of tv and lr are the ones above.
    name: {"bn": Choice(values=(0.0, 1e-4, 1e-2))}
    for name in ("feasibility", "huang")
}
"""What a paper searches, by the attack's and the option's name, where that is no range around the default."""


def default_space(name: str, fixed: Mapping[str, object]) -> dict[str, Range | Choice]:
    """A range for every number that the recipe ``name`` itself takes, but for those in ``fixed`` and whole numbers.

    Whole numbers (steps, populations) buy quality with time: they are searched only when asked for.
    """
    space: dict[str, Range | Choice] = {}
    for key in inspect.signature(ATTACKS[name].value).parameters:
        found = None if key in fixed else _default(name, key)
        if found is not None:
            space[key] = found
    return space


def space_from_text(name: str, texts: Sequence[str], fixed: Mapping[str, object]) -> dict[str, Range | Choice]:
    """``tv``, ``tv=1e-6:1e-2:log``, ``lr=0.01:1`` or ``gradient=fast|exact``: exactly these options are searched."""
    known = options_of(name)
    space: dict[str, Range | Choice] = {}
    for text in texts:
        key, equals, given = (part.strip() for part in text.partition("="))
        if key not in known:
            raise UnknownName(f"option of {name}", key, known)
        if key in fixed:
            raise BadInput(f"'{key}' is both fixed (to {fixed[key]}) and searched: choose one.")
        if key in space:
            raise BadInput(f"--search {key} was given twice.")
        if equals:
            space[key] = _spelled(key, given, known[key])
            continue
        found = _default(name, key)
        if found is None:
            raise BadInput(f"'{key}' has no range of its own: give one, such as --search {key}=LOW:HIGH:log.")
        space[key] = found
    return space


def suggest(trial: optuna.Trial, space: Space) -> dict[str, Any]:
    """A value for every option of the space."""
    drawn: dict[str, Any] = {}
    for key, one in space.items():
        if isinstance(one, Choice):
            drawn[key] = trial.suggest_categorical(key, one.values)
        elif one.whole:
            drawn[key] = trial.suggest_int(key, int(one.low), int(one.high), log=one.log)
        else:
            drawn[key] = trial.suggest_float(key, one.low, one.high, log=one.log)
    return drawn


def _default(name: str, key: str) -> Range | Choice | None:
    return PRESETS.get(name, {}).get(key) or _default_range(name, key)


def _default_range(name: str, key: str) -> Range | None:
    kind = options_of(name)[key]
    if float not in (kind, *get_args(kind)):
        return None
    if key in DEFAULT_RANGES:
        return DEFAULT_RANGES[key]
    parameter = inspect.signature(ATTACKS[name].value).parameters.get(key)
    value = None if parameter is None else parameter.default
    if isinstance(value, int | float) and value > 0:
        return Range(low=value / 100, high=value * 100, log=True)
    return None


def _spelled(key: str, given: str, kind: Any) -> Range | Choice:
    number = next((one for one in (int, float) if one in (kind, *get_args(kind))), None)
    try:
        if "|" in given:
            return Choice(values=tuple(convert(part.strip(), kind, text=True) for part in given.split("|")))
        low, high, *scale = given.split(":")
        if number is None or scale not in ([], ["log"]):
            raise ValueError(given)
        ends: list[Any] = [convert(end.strip(), number, text=True) for end in (low, high)]
    except Mismatch as problem:
        raise BadInput(f"--search {key}={given}: {problem}.") from problem
    except ValueError as problem:
        ranges = "" if number is None else "LOW:HIGH or LOW:HIGH:log, or "
        raise BadInput(f"--search {key}={given}: give {ranges}choices with | between.") from problem
    return Range(low=ends[0], high=ends[1], log=scale == ["log"], whole=number is int)
