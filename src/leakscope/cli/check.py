"""``leakscope check``: is this captured update what we believe it is?"""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.captured import Before, Captured, Model, believed, held_images, read_update
from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions
from leakscope.cli.console import OUT, error, notice, say
from leakscope.cli.model_options import GIVEN_MODEL, GivenModel
from leakscope.cli.option_groups import with_options
from leakscope.errors import BadInput

if TYPE_CHECKING:
    from leakscope.capture import CheckReport, Update
    from leakscope.capture.replay import Client

__all__ = ["check"]


@with_options
def check(
    update: Annotated[Path, Captured],
    model: Annotated[str, Model],
    batch: Annotated[
        list[str] | None, typer.Option(help="Images the client trained on, to replay it; may be repeated.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="Classes of these images, such as 3,5.")] = None,
    before: Annotated[Path | None, Before] = None,
    of: GivenModel = GIVEN_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
) -> None:
    """Check a captured UPDATE before attacking it: an attack on a client taken for another proves nothing.

    UPDATE is the folder of a capture, or the file of the state after training with --before FILE. With --batch the
    client is replayed on its own images, and a mismatch is explained.

    Exit code 0: fit to be attacked. 1: it is not, and nothing may be concluded from it. 2: unreadable, or misuse.
    """
    from leakscope.capture import check as run

    if labels is not None and not batch:
        raise BadInput("--labels are those of the images in --batch, and none were given.")
    belief = believed(client)
    found = read_update(update, before)
    vision = of.build(model)
    held = held_images(batch, labels, vision) if batch else None
    report = run(found, vision, batch=held, client=belief)
    OUT.print(_table(found, report))
    for note in report.notes:
        notice(note)
    for problem in report.problems:
        error(problem)
    if not report.ok:
        raise typer.Exit(1)
    say("Fit to be attacked." if report.verified else "Fit to be attacked, but not confirmed by a replay.", "bold")


def _table(update: Update, report: CheckReport) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _rows(update, report):
        table.add_row(label, Text(value))
    return table


def _rows(update: Update, report: CheckReport) -> list[tuple[str, str]]:
    where = "" if update.round is None else f", round {update.round}"
    rows = [("update", f"{update.kind} of client {update.client or '?'}{where}; {len(update.sent)} tensors sent")]
    rows.append(("bytes", f"{update.nbytes:,}"))
    known = report.inferred
    if known is None:
        return rows
    rows += [
        ("moved", f"{len(known.moved)} parameters; {len(known.still)} sent unchanged, {len(known.withheld)} not sent"),
        ("BatchNorm mode", known.mode or "not known"),
        ("local steps", str(known.steps) if known.steps else "not known"),
        ("learning rate", f"{known.lr:.4g}" if known.lr else "not known"),
        ("precision", known.precision),
    ]
    if known.travel is not None:
        rows.append(("lr × steps", f"at least {known.travel:.3g}, for SGD on a mean loss"))
    if report.client is not None:
        rows.append(("client", _described(report.client)))
    if report.replay is not None:
        rows.append(("replay error", f"{report.replay.error:.2g} (at most {report.replay.tolerance:.2g} agrees)"))
    return rows


def _described(client: Client) -> str:
    """The client's name and whatever is not at its default."""
    said = [
        f"{one.name}={getattr(client, one.name)}"
        for one in fields(client)
        if one.default is MISSING or getattr(client, one.name) != one.default
    ]
    return f"{type(client).__name__}: {', '.join(said)}" if said else type(client).__name__
