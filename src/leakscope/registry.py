"""Names to things, for the few places where a string must be resolved. A name can be taken once."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import parse_qsl

from leakscope.errors import BadInput, UnknownName

__all__ = ["Entry", "Registry", "named_options"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[T]):
    """One registered thing: its name, one line about it, and the key of the paper it comes from."""

    name: str
    value: T
    summary: str
    cites: str | None = None


class Registry(Mapping[str, Entry[T]], Generic[T]):
    """Everything of one kind, by name.

    ``rooms`` are packages whose modules register themselves when imported: they are imported on first use, so adding
    a plug-in is adding a file, and no list is edited.
    """

    def __init__(self, kind: str, *rooms: str) -> None:
        self.kind = kind
        self._rooms = rooms
        self._entries: dict[str, Entry[T]] = {}
        self._opened = False

    def register(self, name: str, *, cites: str | None = None, summary: str | None = None) -> Callable[[T], T]:
        """Decorator: enter the decorated thing under ``name``; its docstring's first line is its summary."""

        def enter(value: T) -> T:
            self.add(name, value, cites=cites, summary=summary)
            return value

        return enter

    def add(self, name: str, value: T, *, cites: str | None = None, summary: str | None = None) -> None:
        if name in self._entries:
            raise ValueError(f"There is already a {self.kind} named '{name}'.")
        line = summary or (value.__doc__ or "").strip().partition("\n")[0]
        if not line:
            raise ValueError(f"The {self.kind} '{name}' needs a docstring: its first line is shown to users.")
        self._entries[name] = Entry(name=name, value=value, summary=line, cites=cites)

    def __getitem__(self, name: str) -> Entry[T]:
        self._open()
        if name not in self._entries:
            raise UnknownName(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._open()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._open()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._open()
        return len(self._entries)

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            for room in self._rooms:
                for module in pkgutil.iter_modules(importlib.import_module(room).__path__):
                    importlib.import_module(f"{room}.{module.name}")


def named_options(text: str, what: str) -> tuple[str, dict[str, str]]:
    """``name?key=value&key=value`` as the name and its options; ``what`` they belong to, for the message."""
    name, _, query = text.partition("?")
    try:
        return name, dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise BadInput(f"Cannot read the {what} options '{query}': write key=value&key=value.") from error
