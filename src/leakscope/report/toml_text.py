"""Data as TOML text: the campaign file again, from the manifest's copy of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["toml_text"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(data: Mapping[str, Any]) -> str:
    """``data`` as a TOML document; what is ``None`` is left out, as TOML has no word for it."""
    return "\n".join(_table(data, ())).strip() + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping) and not _is_tables(v)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        inner = (*path, key)
        name = ".".join(_key(part) for part in inner)
        if isinstance(value, Mapping):
            body = _table(cast("Mapping[str, Any]", value), inner)
            lines += ["", f"[{name}]", *body]
        elif _is_tables(value):
            for item in value:
                lines += ["", f"[[{name}]]", *_table(item, inner)]
    return lines


def _is_tables(value: object) -> bool:
    """Whether this is a list of tables, written as ``[[name]]``."""
    items = cast("list[object]", value) if isinstance(value, list | tuple) else []
    return bool(items) and all(isinstance(item, Mapping) for item in items)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return (
            str(value) if math.isfinite(value) else ("nan" if math.isnan(value) else ("inf" if value > 0 else "-inf"))
        )
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in cast("list[object]", value)) + "]"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in pairs if v is not None) + "}"
    return _string(str(value))


def _string(text: str) -> str:
    """JSON's escapes are TOML's, but for DEL, which TOML wants escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
