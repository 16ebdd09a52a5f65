"""Running cases one after the other: the bar, the tables, the pictures, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from leakscope.cli.console import ERR, OUT, notice, say, where
from leakscope.cli.progress import Watch, together
from leakscope.cli.tables import score_table

if TYPE_CHECKING:
    from leakscope.audit.record import Record
    from leakscope.audit.run import Case, Ran

__all__ = ["run_cases"]


def run_cases(
    cases: Sequence[tuple[Case, Path]],
    *,
    fresh: bool = False,
    every: float = 10.0,
    jobs: int = 1,
    seconds: float | None = None,
    titles: Sequence[str] = (),
    brief: bool = False,
    track: str | None = None,
) -> list[Record]:
    """Run each case into its folder and show what came back; ends early, with fewer records, after a Ctrl-C.

    ``brief`` leaves the scores and the paths to the caller. ``track``: where losses are logged as well.
    """
    from leakscope.audit.run import invert
    from leakscope.audit.trackers import PICTURES, tracking
    from leakscope.types import Status

    records: list[Record] = []
    for index, (case, folder) in enumerate(cases):
        if titles:
            say(titles[index], style="bold")
        count = f"{index + 1}/{len(cases)} " if len(cases) > 1 else ""
        with (
            Watch(ERR, title=f"{count}{case.attack_name}", jobs=jobs, seconds=seconds) as watch,
            tracking(track, run=folder.name, folder=folder, pictures=track == PICTURES) as tracker,
        ):
            callback = together(watch, tracker.scope(folder.name))
            ran = invert(case, folder, fresh=fresh, every=every, callback=callback)
        records.append(ran.record)
        _show(ran, folder, brief=brief)
        if ran.record.status == Status.INTERRUPTED:
            break
    notes = {metric: why for record in records for metric, why in record.scores["notes"].items()}
    for metric, why in notes.items() if not brief else ():
        say(f"{metric}: {why}.", style="dim")
    return records


def _show(ran: Ran, folder: Path, *, brief: bool) -> None:
    from leakscope.report.caption import run_line

    record = ran.record
    if ran.reused:
        notice(f"This run ended before ({record.created}), so nothing was run. --fresh runs it again.")
    drawn = _draw(record, folder, again=not ran.reused)
    say(f"{record.message} Loss {record.energy:.3g}, {run_line(record)}.")
    if brief:
        return
    OUT.print(score_table(record))
    where("record", folder / "record.json")
    for label, path in drawn.items():
        where(label, path)


def _draw(record: Record, folder: Path, *, again: bool) -> dict[str, Path]:
    """The contact sheet and, for attacks with a loop, the loss curve; drawn only if absent unless ``again``."""
    from leakscope.report.pictures import CONTACT_SHEET, LOSS_CURVE, contact_sheet, loss_curve

    drawn = {"contact sheet": folder / CONTACT_SHEET}
    if again or not drawn["contact sheet"].exists():
        contact_sheet(folder)
    if any(record.trace):
        drawn["loss curve"] = folder / LOSS_CURVE
        if again or not drawn["loss curve"].exists():
            loss_curve(folder)
    return drawn
