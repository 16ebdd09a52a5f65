"""Names for messages."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["as_names"]

_SHOWN = 6


def as_names(names: Sequence[str]) -> str:
    """A short, readable list: the first few, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
