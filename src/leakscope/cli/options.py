"""Options that several commands share, and turning what people type into values."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

import typer

from leakscope.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from leakscope.types import Attack, ThreatModel

__all__ = [
    "SEEDS",
    "Channels",
    "Classes",
    "ImageSize",
    "ModelName",
    "Weights",
    "build_attack",
    "parse_labels",
    "set_threads",
    "threat_named",
]

SEEDS: Final = 2**63 - 1
"""The largest seed."""

# Arguments are described in the commands' own help: typer drops their help texts with recent versions of click.
ModelName: Final = typer.Argument(metavar="MODEL", show_default=False)
_PANEL: Final = "Model"
Weights: Final = typer.Option(
    help="Weights for the model: safetensors, or a plain state dict. Without, they are drawn at random.",
    show_default=False,
    rich_help_panel=_PANEL,
)
Classes: Final = typer.Option(
    help="Number of classes, if not the model's own.", show_default=False, rich_help_panel=_PANEL
)
ImageSize: Final = typer.Option(
    help="Side of the images in pixels, if not the model's own.", show_default=False, rich_help_panel=_PANEL
)
Channels: Final = typer.Option(
    help="1 for greyscale, 3 for colour, if not the model's own.", show_default=False, rich_help_panel=_PANEL
)


def parse_labels(text: str | None) -> list[int] | None:
    """``3,5`` → [3, 5]."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(f"--labels takes whole numbers with commas between, such as 3,5; got '{text}'.") from error


def set_threads(count: int) -> None:
    """How many threads torch may use in this process."""
    import torch

    if count < 1:
        raise BadInput(f"--threads is {count}; it must be at least 1.")
    torch.set_num_threads(count)


def threat_named(name: str) -> ThreatModel:
    """A rung of the ladder of threat models by the name that the command line gives it."""
    from leakscope.client import threats

    # The higher rungs know public data or the defence, neither of which this command line can hand over yet.
    rungs = {
        "honest-server": threats.HONEST_SERVER,
        "labels": threats.WITH_LABELS,
        "statistics": threats.WITH_STATISTICS,
    }
    if name not in rungs:
        raise UnknownName("threat model", name, rungs)
    return rungs[name]


def build_attack(
    name: str,
    *,
    steps: int | None = None,
    restarts: int | None = None,
    jobs: int | None = None,
    gradient: str | None = None,
    seconds: float | None = None,
    patience: int | None = None,
    target: float | None = None,
    pairs: Sequence[str] = (),
) -> Attack:
    """The attack ``name`` with what was asked for; ``pairs`` are ``key=value`` for the recipe's own options."""
    from leakscope.attacks import ATTACKS, Optimisation, attack

    options = _typed(name, ATTACKS[name].value, pairs)
    if steps is not None:
        if "steps" in options:
            raise BadInput("The number of steps was given twice: by --steps and by --set steps=….")
        options["steps"] = steps
    made = attack(name, **options)
    stops = {"seconds": seconds, "patience": patience, "target": target}
    stops = {key: value for key, value in stops.items() if value is not None}
    if jobs is None and restarts is not None:
        jobs = max(1, min(restarts, os.cpu_count() or 1))
    fields = {"population": restarts, "workers": jobs, "gradient": gradient}
    fields = {key: value for key, value in fields.items() if value is not None}
    if not stops and not fields:
        return made
    if not isinstance(made, Optimisation):
        raise BadInput(f"'{name}' has no optimisation loop: restarts, jobs, gradient and stopping do not apply to it.")
    for key, value in stops.items():
        if not math.isfinite(value) or (value <= 0 and key != "target"):
            raise BadInput(f"--{key} is {value}; it must be more than 0.")
    changes: dict[str, Any] = {**fields, "stop": replace(made.stop, **stops)}
    return replace(made, **changes)


def _typed(name: str, recipe: Any, pairs: Sequence[str]) -> dict[str, object]:
    """``key=value`` texts as values of the types that the recipe's parameters have."""
    known = signature(recipe).parameters
    hints = get_type_hints(recipe)
    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals:
            raise BadInput(f"--set takes key=value; got '{pair}'. Known keys: {', '.join(sorted(known))}.")
        if key not in known:
            raise UnknownName(f"option of {name}", key, known)
        if key in options:
            raise BadInput(f"--set {key} was given twice.")
        options[key] = _value(key, text.strip(), hints.get(key, str))
    return options


def _value(key: str, text: str, kind: Any) -> object:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise BadInput(f"--set {key}={text}: accepted are {', '.join(map(str, get_args(kind)))}.")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise BadInput(f"--set {key}={text}: it must be true or false.")
        return text.lower() == "true"
    names = {int: "a whole number", float: "a number"}
    if kind in names:
        try:
            value = kind(text)
        except ValueError as error:
            raise BadInput(f"--set {key}={text}: it must be {names[kind]}.") from error
        if not math.isfinite(value):
            raise BadInput(f"--set {key}={text}: it must be a finite number.")
        return value
    return text
