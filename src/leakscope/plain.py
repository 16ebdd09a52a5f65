"""Plain data as values of declared types: what a TOML or JSON file, or a text on the command line, gives an option.

A whole number stands for a number, a list for a tuple, a text for a path; nothing else is bent to fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin

__all__ = ["Mismatch", "accepts", "convert"]

_WORDS: Final[dict[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    NoneType: "none",
}


class Mismatch(ValueError):
    """A value that is not of the declared kind; the message says what is accepted, as the end of a sentence."""


def accepts(kind: Any) -> bool:
    """Whether plain data can give a value of this kind at all; a tensor or a function, say, it cannot."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal or kind in _WORDS:
        return True
    if origin in (Union, UnionType):
        return any(part is not NoneType and accepts(part) for part in parts)
    return origin in (tuple, list) and all(accepts(part) for part in parts if part is not Ellipsis)


def convert(value: object, kind: Any, *, text: bool = False) -> object:
    """``value`` as the declared ``kind``, or :class:`Mismatch`. With ``text``, ``value`` is what somebody typed."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for part in sorted(parts, key=lambda part: part is not NoneType):
            try:
                return convert(value, part, text=text)
            except Mismatch:
                continue
        raise Mismatch(_wanted(kind))
    if origin is Literal:
        for part in parts:
            if (str(part) == value) if text else (part == value and type(part) is type(value)):
                return part
        raise Mismatch(_wanted(kind))
    if origin in (tuple, list):
        return _several(value, kind, text=text)
    try:
        return _typed(str(value).strip(), kind) if text else _checked(value, kind)
    except Mismatch:
        raise
    except ValueError:
        raise Mismatch(_wanted(kind)) from None


def _several(value: object, kind: Any, *, text: bool) -> object:
    origin, parts = get_origin(kind), get_args(kind)
    if text:
        value = [item for item in str(value).split(",") if item.strip()]
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise Mismatch(_wanted(kind))
    items = cast("Sequence[object]", value)
    kinds = parts if origin is tuple and Ellipsis not in parts else parts[:1] * len(items)
    if len(kinds) != len(items):
        raise Mismatch(_wanted(kind))
    return origin(convert(item, part, text=text) for item, part in zip(items, kinds, strict=True))


def _typed(text: str, kind: Any) -> object:
    if kind is bool or kind is NoneType:
        words: dict[str, object] = {"true": True, "false": False} if kind is bool else {"none": None}
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]
    return _checked(kind(text), kind)


def _checked(value: object, kind: Any) -> object:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is Path and isinstance(value, str):
        value = Path(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise Mismatch("it must be a finite number")
    return value


def _wanted(kind: Any) -> str:
    return f"accepted are {_words(kind)}" if get_origin(kind) is Literal else f"it must be {_words(kind)}"


def _words(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(str(part) for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_words(part) for part in parts if accepts(part) or part is NoneType)
    if origin is tuple and Ellipsis not in parts:
        return f"a list of {len(parts)}: " + ", ".join(_words(part) for part in parts)
    if origin in (tuple, list):
        return f"a list, each {_words(parts[0])}"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))
