"""``leakscope plan``: the cells of a campaign and how long they will take, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.console import ERR, OUT, say
from leakscope.cli.progress import clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakscope.audit.cell import Cell

__all__ = ["plan"]


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Run one step of each kind to estimate the time.")
    ] = True,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes the campaign will run in.")] = 1,
) -> None:
    """Print the cells of the campaign in FILE and an estimate of the time they take.

    Nothing is written. The estimate is an upper bound: where a closed form settles a target, higher rungs are skipped.
    """
    from leakscope.audit.campaign_file import read_campaign
    from leakscope.audit.cell import Role
    from leakscope.audit.estimate import estimate
    from leakscope.audit.plan import cells_of

    campaign, base = read_campaign(file), file.resolve().parent
    cells = cells_of(campaign, base)
    times: dict[str, float] = {}
    if measure:
        with ERR.status("Measuring one step of each kind …") as status:

            def told(done: int, total: int) -> None:
                status.update(f"Measuring one step of each kind: {done} of {total} …")

            times = dict(estimate(cells, base, told=told))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("target", "attacker", "attacks"):
        table.add_column(heading, overflow="fold")
    for heading in ("cells", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.role in (Role.ATTACK, Role.CONTROL):
            rows.setdefault((cell.target, cell.attacker), []).append(cell)
        else:
            rows.setdefault((str(cell.role), ""), []).append(cell)
    for (target, attacker), some in rows.items():
        spent = clock(sum(times[cell.key] for cell in some)) if times else ""
        table.add_row(Text(target), Text(attacker), Text(_attacks(some)), str(len(some)), spent)
    OUT.print(table)
    longest = f" At most about {clock(sum(times.values()) / jobs)} with {jobs} at a time." if times else ""
    say(f"{len(cells)} cells.{longest}")


def _attacks(cells: Sequence[Cell]) -> str:
    """What is tried, in order, each once: closed forms are many, quick and mostly refused, so they are counted."""
    from leakscope.attacks.analytic.scan import closed_forms

    forms, names = set(closed_forms()), dict[str, None]()
    for cell in cells:
        if cell.attack and cell.attack not in forms:
            names[cell.attack_name] = None
    count = len({cell.attack_name for cell in cells if cell.attack in forms})
    first = [f"{count} closed form{'s' if count > 1 else ''}"] if count else []
    return ", ".join([*first, *names])
