"""``leakscope audit``: run a campaign, judge what came back, write the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.campaign_progress import CampaignWatch
from leakscope.cli.console import ERR, OUT, notice, say, where
from leakscope.cli.interrupt import Interrupt
from leakscope.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakscope.audit.campaign import Campaign
    from leakscope.audit.cell import Cell
    from leakscope.audit.executors import Executor
    from leakscope.audit.findings import Findings

__all__ = ["LEVEL_STYLE", "audit", "run_audit"]

LEVEL_STYLE = {
    "exact": "bold red",
    "recognisable": "red",
    "traces": "yellow",
    "nothing found": "green",
    "unknown": "magenta",
}


def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output folder; by default out/NAME-OF-THE-FILE.")
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Cells run side by side, each with its share of the cores.")
    ] = 1,
    executor: Annotated[
        Literal["local", "ray"], typer.Option(help="Where cells run: on this machine, or on a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; without, one is started on this machine.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit with 3 if anything is at least this bad: exact, recognisable, traces.", metavar="LEVEL"
        ),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run cells again that failed before.")] = False,
    checkpoint_every: Annotated[
        float, typer.Option(min=0, help="Seconds of work that a kill may cost in a cell.")
    ] = 5.0,
) -> None:
    """Run the campaign in FILE and write a report that says what leaks, how sure that is, and what was tried.

    `leakscope init MODEL` writes such a file, `leakscope plan FILE` says what it will do. Ctrl-C keeps what is done;
    the same command again goes on from there.
    """
    from leakscope.audit.campaign_file import read_campaign
    from leakscope.audit.plan import cells_of
    from leakscope.report.exit_code import exit_code, threshold

    fail_level = None if fail_on is None else threshold(fail_on)
    if address is not None and executor != "ray":
        raise BadInput("--address is for --executor ray.")
    campaign, base = read_campaign(file), file.resolve().parent
    out = out or Path("out") / file.stem
    findings = run_audit(
        campaign,
        cells_of(campaign, base),
        out,
        base,
        jobs=jobs,
        cluster=address or "" if executor == "ray" else None,
        every=checkpoint_every,
        retry_failed=retry_failed,
    )
    raise typer.Exit(exit_code(findings, fail_level))


def run_audit(
    campaign: Campaign,
    cells: Sequence[Cell],
    out: Path,
    base: Path,
    *,
    jobs: int = 1,
    cluster: str | None = None,
    every: float = 5.0,
    retry_failed: bool = False,
) -> Findings:
    """Run the cells, judge them, write the report and say where it is. A Ctrl-C ends in exit code 130."""
    from leakscope.audit.findings_file import write_findings
    from leakscope.audit.judge import judge
    from leakscope.audit.policy import policy_from
    from leakscope.audit.runner import begin, run_campaign
    from leakscope.report.html import file_name, render, write_file
    from leakscope.report.load import load

    with Interrupt("Stopping: what is done is kept.") as interrupt:
        manifest = begin(campaign, cells, out)
        runs_on = _executor(out, base, jobs=jobs, cluster=cluster, every=every, interrupt=interrupt)
        with CampaignWatch(ERR) as watch:
            state = run_campaign(manifest, out, runs_on, stop=interrupt, watch=watch, retry_failed=retry_failed)
        findings = judge(out, policy_from(campaign.verdict), base=base)
        write_findings(findings, out)
        read = load(out)
        report = write_file(out / file_name(read, "html"), render(read))
    OUT.print(_table(findings))
    failed = sum(one.status == "failed" for one in state.ended.values())
    if failed:
        notice(
            f"{failed} cells failed: the report has their errors; they count for nothing. --retry-failed tries again."
        )
    where("report", report)
    if interrupt.asked:
        notice(f"{len(state.ended)} of {state.total} cells are done; the same command again goes on from there.")
        raise typer.Exit(130)
    say(f"{state.total} cells done.")
    return findings


def _executor(out: Path, base: Path, *, jobs: int, cluster: str | None, every: float, interrupt: Interrupt) -> Executor:
    if cluster is not None:
        from leakscope.audit.ray_executor import RayExecutor

        return RayExecutor(out, base, address=cluster or None, jobs=jobs)
    from leakscope.audit.executors import InProcess, Local

    if jobs == 1:
        return InProcess(out, base, every=every, stop=interrupt)
    return Local(out, base, jobs=jobs, every=every)


def _table(findings: Findings) -> Table:
    """Every target and attacker with its verdict, worst first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("verdict", "target", "attacker", "worst image", "by"):
        table.add_column(heading, no_wrap=heading == "verdict", overflow="fold")
    for finding in findings.findings:
        worst = finding.images[0] if finding.images else None
        psnr = worst.scores.get("psnr") if worst else None
        table.add_row(
            Text(str(finding.level), style=LEVEL_STYLE[str(finding.level)]),
            Text(finding.target),
            Text(finding.attacker),
            Text("" if worst is None else worst.name + ("" if psnr is None else f", {psnr:.1f} dB")),
            Text(worst.attack if worst else ""),
        )
    return table
