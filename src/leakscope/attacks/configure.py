"""An attack with its options from plain data: a campaign file's table, or ``key=value`` texts.

Options are the recipe's own parameters and, beside them, those fields of the attack it makes that plain data can give:
``population``, ``workers``, ``gradient``, and the stopping rule's ``seconds``, ``patience``, ``target``, ``tolerance``.
An optimisation also takes ``start_from``, the name of an attack: what that brings back is where it begins; and
``search``, whether it moves pixels or the frequencies that pictures are made of.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast, get_type_hints

from leakscope.attacks.decoders import SEARCHES, Search
from leakscope.attacks.optimisation import Optimisation, Stop
from leakscope.attacks.registry import ATTACKS, attack
from leakscope.attacks.starts import from_attack
from leakscope.errors import BadInput, UnknownName
from leakscope.plain import Mismatch, accepts, convert
from leakscope.types import Attack

__all__ = ["check_stop", "configured", "has_loop", "options_from_file", "options_from_text", "options_of"]

log = logging.getLogger(__name__)

_STOP: Final = frozenset(field.name for field in dataclasses.fields(Stop))
_FROM: Final = "start_from"
_SEARCH: Final = "search"


def configured(name: str, options: Mapping[str, object]) -> Attack:
    """The attack ``name`` with ``options``, each checked against its declared type; unknown ones are refused."""
    known = options_of(name)
    values: dict[str, Any] = {}
    for key, value in options.items():
        kind = _kind(name, key, known)
        try:
            values[key] = convert(value, kind)
        except Mismatch as problem:
            given = f"{value!r} ({type(value).__name__})"
            raise BadInput(f"The option '{key}' of {name} is {given}; {problem}.") from problem
    first, search = values.pop(_FROM, None), values.pop(_SEARCH, None)
    stops = {key: values.pop(key) for key in list(values) if key in _STOP and key not in _own(name)}
    for key, value in stops.items():
        check_stop(key, value, f"The option '{key}' of {name}")
    made = attack(name, **values)
    changes: dict[str, Any] = {}
    if stops:
        before: Any = getattr(made, "stop", None)
        changes["stop"] = dataclasses.replace(before if isinstance(before, Stop) else Stop(), **stops)
    if first is not None:
        changes["init"] = from_attack(first)
    if search is not None:
        if isinstance(made, Optimisation) and made.decode is not None:
            raise BadInput(f"The option '{_SEARCH}' of {name} is '{search}'; {name} has a space of its own to search.")
        changes["decode"] = SEARCHES[search]
    return dataclasses.replace(made, **changes) if changes else made  # type: ignore[type-var]


def options_from_text(name: str, pairs: Sequence[str], *, flag: str = "--set") -> dict[str, object]:
    """``key=value`` texts as values of the declared types; ``flag`` is what messages call the place they come from.

    ``@FILE`` stands for the options in a JSON file, such as the ``tuned.json`` of a tuning; a ``key=value`` beside it
    has the last word.
    """
    known = options_of(name)
    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if pair.startswith("@"):
            continue
        if not equals:
            own = sorted(_own(name))
            more = sorted(set(known) - set(own))
            listed = "; ".join(", ".join(keys) for keys in (own, more) if keys) or "none"
            raise BadInput(f"{flag} takes key=value, or @FILE; got '{pair}'. Known keys: {listed}.")
        kind = _kind(name, key, known)
        if key in options:
            raise BadInput(f"{flag} {key} was given twice.")
        try:
            options[key] = convert(text, kind, text=True)
        except Mismatch as problem:
            raise BadInput(f"{flag} {key}={text}: {problem}.") from problem
    files = [options_from_file(name, Path(pair[1:])) for pair in pairs if pair.startswith("@")]
    return {key: value for group in (*files, options) for key, value in group.items()}


def options_from_file(name: str, path: Path) -> dict[str, object]:
    """The options of the attack ``name`` in a JSON file: the file itself, or what it holds under ``options``."""
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"'{path}' cannot be read as a JSON file of options: {error}.") from error
    table = cast("dict[str, object]", content) if isinstance(content, dict) else {}
    options = table.get("options", table)
    if not isinstance(options, dict) or not options:
        raise BadInput(f"'{path}' holds no options: a JSON object of them is needed, or one under 'options'.")
    if table.get("attack", name) != name:
        raise BadInput(f"'{path}' was tuned for {table['attack']}, not for {name}.")
    if table.get("upper_bound"):
        log.warning("'%s' was tuned by an ORACLE, with the truth: what comes back now is an upper bound.", path)
    return dict(cast("dict[str, object]", options))


def options_of(name: str) -> dict[str, Any]:
    """Every option of the attack ``name`` with its declared type, the recipe's own first."""
    recipe = ATTACKS[name].value
    hints = get_type_hints(recipe)
    known = {key: hints.get(key, str) for key in _own(name)}
    made = hints.get("return")
    if isinstance(made, type) and dataclasses.is_dataclass(made):
        kinds = get_type_hints(made)
        for field in dataclasses.fields(made):
            kind = kinds[field.name]
            if kind is Stop:
                known = {**get_type_hints(Stop), **known}
            elif field.init and field.name not in known and accepts(kind):
                known[field.name] = kind
    if made is Optimisation:
        known |= {_FROM: str, _SEARCH: Search}
    return known


def has_loop(name: str) -> bool:
    """Whether restarts and stopping apply to the attack ``name``."""
    return set(options_of(name)) >= _STOP


def check_stop(key: str, value: float | None, called: str) -> None:
    """Refuse a stopping rule that could never be met or never ends; ``called`` is its name in the message."""
    if value is None:
        return
    if not math.isfinite(value) or (value <= 0 and key != "target"):
        needed = "finite" if key == "target" else "more than 0"
        raise BadInput(f"{called} is {value}; it must be {needed}.")


def _own(name: str) -> list[str]:
    """The recipe's own parameters."""
    return list(inspect.signature(ATTACKS[name].value).parameters)


def _kind(name: str, key: str, known: Mapping[str, Any]) -> Any:
    if key not in known:
        raise UnknownName(f"option of {name}", key, known)
    if not accepts(known[key]):
        raise BadInput(f"The option '{key}' of {name} takes a value that only Python can give, not text or numbers.")
    return known[key]
