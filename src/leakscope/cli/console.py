"""Where the command line writes: results to standard output; progress, notices and errors to standard error.

File names and messages are printed as they are: nothing in them is taken for markup.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

__all__ = ["ERR", "OUT", "error", "notice", "say", "show_log", "where"]

OUT: Final = Console(highlight=False)
ERR: Final = Console(stderr=True, highlight=False)


def say(text: str, style: str = "") -> None:
    """A line of result."""
    OUT.print(Text(text, style=style), soft_wrap=True)


def notice(text: str) -> None:
    """Something the user should know, which is no error."""
    ERR.print(Text(text, style="yellow"), soft_wrap=True)


def error(text: str) -> None:
    """What went wrong, in one message."""
    ERR.print(Text.assemble(("Error: ", "bold red"), text), soft_wrap=True)


def where(label: str, path: Path) -> None:
    """A path on a line of its own, so that it can be clicked or copied."""
    OUT.print(Text.assemble((f"{label:<15}", "dim"), str(path)), soft_wrap=True)


class _Notices(logging.Handler):
    """The library's warnings, as notices."""

    def emit(self, record: logging.LogRecord) -> None:
        notice(record.getMessage())


def show_log() -> None:
    """Show the library's warnings; a second call changes nothing."""
    logger = logging.getLogger("leakscope")
    if not any(isinstance(handler, _Notices) for handler in logger.handlers):
        logger.addHandler(_Notices(logging.WARNING))
        logger.propagate = False
