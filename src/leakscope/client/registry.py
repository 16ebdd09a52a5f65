"""Defences by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, get_type_hints

from leakscope.errors import BadInput, UnknownName
from leakscope.plain import Mismatch, convert
from leakscope.registry import Registry, named_options
from leakscope.types import Defence

__all__ = ["DEFENCES", "defence", "defence_from", "defence_from_text", "register_defence"]

D = TypeVar("D", bound=type[Defence])

DEFENCES: Final[Registry[Callable[..., Defence]]] = Registry("defence", "leakscope.client.defences")


def register_defence(name: str, *, cites: str | None = None) -> Callable[[D], D]:
    """Decorator for a defence's dataclass: enter it under ``name``; ``cites`` is a key in the bibliography."""

    def enter(made: D) -> D:
        made.name = name
        DEFENCES.add(name, made, cites=cites)
        return made

    return enter


def defence(name: str, /, **options: object) -> Defence:
    """The defence registered as ``name``, configured; its options are the fields of its dataclass."""
    return _made(name, options)


def defence_from_text(text: str) -> Defence:
    """A defence as somebody types it, options after a question mark: ``gaussian-noise?scale=0.1``."""
    name, options = named_options(text, "defence")
    return _made(name, options, text=True)


def _made(name: str, options: Mapping[str, object], *, text: bool = False) -> Defence:
    made = DEFENCES[name].value
    fields = {f.name: f for f in dataclasses.fields(made)}  # type: ignore[arg-type]
    hints = get_type_hints(made)
    values: dict[str, object] = {}
    for key, value in options.items():
        if key not in fields:
            raise UnknownName(f"option of {name}", key, fields)
        try:
            values[key] = convert(value, hints[key], text=text)
        except Mismatch as problem:
            raise BadInput(f"The option '{key}' of {name} is {value!r}; {problem}.") from problem
    missing = [key for key, f in fields.items() if key not in options and not _has_default(f)]
    if missing:
        raise BadInput(f"The defence '{name}' needs {' and '.join(missing)}.")
    return made(**values)


def defence_from(settings: Mapping[str, object]) -> Defence:
    """A defence from plain data, as in a campaign file: ``{"type": "gaussian-noise", "scale": 0.1}``."""
    kind = settings.get("type")
    if not isinstance(kind, str):
        raise BadInput(f"A defence needs a 'type', one of {', '.join(DEFENCES)}; got {dict(settings)}.")
    return defence(kind, **{key: value for key, value in settings.items() if key != "type"})


def _has_default(field: dataclasses.Field[object]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
