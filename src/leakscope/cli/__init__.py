"""The ``leakscope`` command: one thin file per command."""

from __future__ import annotations

from leakscope.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="leakscope")
