"""What can go wrong, in a handful of types.

Misuse raises; numerical failure does not (it is an :class:`~leakscope.types.Outcome`). Every message says what was
given, what is accepted and what to do. The command line turns any :class:`LeakscopeError` into exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["BadInput", "LeakscopeError", "MissingExtra", "MissingKnowledge", "NotApplicable", "UnknownName"]


class LeakscopeError(Exception):
    """The parent of every error leakscope raises on purpose."""


class BadInput(LeakscopeError, ValueError):
    """A value that cannot be used: a wrong shape, a label out of range, an unreadable file."""


class UnknownName(BadInput):
    """A name nothing is registered under; the nearest known one is suggested."""

    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        listed = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
        super().__init__(f"Unknown {kind} '{given}'.{hint} Known: {listed or 'none'}.")


class NotApplicable(LeakscopeError):
    """An attack whose conditions do not hold for this observation; the message gives the reason."""


class MissingKnowledge(NotApplicable):
    """An attack needs something that this threat model hides from the server."""


class MissingExtra(LeakscopeError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency: pip install 'leakscope[{extra}]'.")
