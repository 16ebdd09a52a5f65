"""``leakscope list``: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.console import OUT, say
from leakscope.errors import UnknownName

__all__ = ["listing"]

_Row = tuple[str, str, str | None]
"""Name, one line, the key of the paper."""


def listing(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False)],
) -> None:
    """List attacks, models, metrics, defences or studies: one line each, and the paper."""
    if kind not in _KINDS:
        raise UnknownName("list", kind, _KINDS)
    _KINDS[kind]()


def _attacks() -> None:
    from leakscope.attacks import ATTACKS

    _table((entry.name, entry.summary, entry.cites) for entry in ATTACKS.values())


def _models() -> None:
    from leakscope.models import list_models

    _table(list_models())
    say("Also timm:NAME, torchvision:NAME and path/to/file.py:factory.", style="dim")


def _metrics() -> None:
    from leakscope.metrics import METRICS

    _table((entry.name, entry.summary, entry.cites) for entry in METRICS.values())


def _defences() -> None:
    from leakscope.client.registry import DEFENCES

    _table((entry.name, entry.summary, entry.cites) for entry in DEFENCES.values())


def _studies() -> None:
    from leakscope.audit.study import STUDIES

    _table((entry.name, entry.summary, entry.cites) for entry in STUDIES.values())


_KINDS: Final[dict[str, Callable[[], None]]] = {
    "attacks": _attacks,
    "models": _models,
    "metrics": _metrics,
    "defences": _defences,
    "studies": _studies,
}


def _table(rows: Iterable[_Row]) -> None:
    from leakscope.bibliography import paper

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, summary, cites in rows:
        source = f" {paper(cites).short}." if cites else ""
        table.add_row(Text(name), Text.assemble(summary, (source, "dim")))
    OUT.print(table)
