"""``leakscope report``: what a campaign found, for people and for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.console import notice, say, where

__all__ = ["report"]


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a campaign.", show_default=False)],
    redact: Annotated[
        bool,
        typer.Option(
            "--redact", help="For sharing: no originals, no names of images, no labels, nothing recognisable."
        ),
    ] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also a PDF, printed by Chromium.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Also a table: a row for every image and finding.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Also a document for other programs.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="Exit with 3 if a verdict is at least this bad (exact, recognisable or traces), or still open.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Write the report of the campaign in DIR: one HTML file, with everything in it.

    A page for whoever has to decide, and the details behind it: every cell, its settings, scores, curves and seeds.
    With --redact it may be shared; the file is then report-redacted.html.
    """
    from leakscope.report.exit_code import exit_code, objections, threshold
    from leakscope.report.export import csv_text, json_text
    from leakscope.report.html import file_name, render, write_file
    from leakscope.report.load import load
    from leakscope.report.pdf import print_pdf
    from leakscope.report.redact import redact as redacted
    from leakscope.report.words import answer, headline

    limit = None if fail_on is None else threshold(fail_on)
    audit = load(folder)
    if redact:
        audit = redacted(audit)
    page = write_file(folder / file_name(audit, "html"), render(audit))
    say(headline(audit.findings), style="bold")
    say(answer(audit.findings))
    where("report", page)
    if csv:
        where("table", write_file(folder / file_name(audit, "csv"), csv_text(audit)))
    if json:
        where("document", write_file(folder / file_name(audit, "json"), json_text(audit)))
    if pdf:
        where("PDF", print_pdf(page, folder / file_name(audit, "pdf")))
    if not redact:
        notice("The report holds private images. Use --redact for one that may be shared.")
    if show:
        typer.launch(page.resolve().as_uri())
    if limit is not None:
        for reason in objections(audit.findings, limit):
            notice(f"--fail-on {limit}: {reason}")
    code = exit_code(audit.findings, limit)
    if code:
        raise typer.Exit(code)
