"""``leakscope scan``: what algebra alone gives away of these images, in seconds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions, Threat
from leakscope.cli.console import OUT, notice, say, where
from leakscope.cli.model_options import DEFAULT_MODEL, ModelOptions
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import SEEDS, Labels, LabelsFile, ModelName, parse_labels, set_threads, threat_named
from leakscope.cli.tables import cell

if TYPE_CHECKING:
    from leakscope.attacks.analytic.scan import ScanResult, Tried
    from leakscope.audit.record import Record
    from leakscope.types import Batch

__all__ = ["scan"]


@with_options
def scan(
    model: Annotated[str, ModelName],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES...", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output folder; by default below out/.")] = None,
    labels: Annotated[str | None, Labels] = None,
    labels_file: Annotated[Path | None, LabelsFile] = None,
    each: Annotated[
        bool, typer.Option("--each/--together", help="Every image a batch of its own, or all in one batch.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of the closed forms that draw random numbers.")] = 0,
    of: ModelOptions = DEFAULT_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
    threat: Annotated[str, Threat] = "honest-server",
    threads: Annotated[int | None, typer.Option(help="Threads; 1 is best beside other work.")] = None,
) -> None:
    """Try every closed form on what a client would share of IMAGES while it trains MODEL.

    Closed forms take seconds, are exact where they apply, check themselves, and refuse with the reason where they do
    not apply. MODEL and IMAGES are as for leakscope invert.

    Writes each original beside what came back, and a record.json, for every closed form that applied.
    """
    from leakscope.audit.images import load_images
    from leakscope.audit.scan import scan_batch
    from leakscope.audit.store import ensure_writable
    from leakscope.types import Batch

    if threads is not None:
        set_threads(threads)
    knowledge, classes = threat_named(threat), parse_labels(labels, labels_file)
    protocol = client.client()
    out = out or Path("out") / re.sub(r"[^\w.-]+", "-", f"scan-{model}").strip("-")
    ensure_writable(out)
    vision = of.load(model)
    loaded = load_images(images, vision.input, classes)
    for line in (*loaded.notices, *client.notices()):
        notice(line)
    whole = loaded.batch
    parts = [whole]
    if each and len(whole) > 1:
        parts = [
            Batch(images=whole.images[i : i + 1], labels=whole.labels[i : i + 1], names=whole.names[i : i + 1])
            for i in range(len(whole))
        ]
    for index, batch in enumerate(parts):
        folder = out if len(parts) == 1 else out / f"batch-{index}"
        if len(parts) > 1:
            say(batch.names[0] if batch.names else folder.name, style="bold")
        result, records = scan_batch(vision, batch, client=protocol, threat=knowledge, seed=seed, folder=folder)
        _show(result, records, folder, batch)


def _show(result: ScanResult, records: dict[str, Record], folder: Path, batch: Batch) -> None:
    from leakscope.report.pictures import CONTACT_SHEET, contact_sheet

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("closed form", "outcome", "worst PSNR", "self-check", "seconds"):
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("closed form", "outcome") else "right")
    for one in result.tried:
        table.add_row(*_row(one, records.get(one.name)))
    OUT.print(table)
    for one in result.tried:
        said = one.refused if one.reconstruction is None else one.reconstruction.outcome.message
        OUT.print(Text.assemble((f"{one.name}: ", "bold"), said or ""), soft_wrap=True)
    for name in records:
        contact_sheet(folder / name)
        where("pictures", folder / name / CONTACT_SHEET)
    best = result.best
    if best is None:
        say(f"No closed form applies to this batch of {len(batch)}. That is no proof of safety: see leakscope invert.")
    else:
        say(f"Of these, {best.name} leaves least unexplained ({best.energy:.1e}).")


def _row(one: Tried, record: Record | None) -> tuple[str | Text, ...]:
    if record is None:
        return one.name, Text("refused", style="dim"), "", "", cell(one.seconds)
    values = record.metric("psnr") or []
    worst = f"{min(values):.1f} dB" if values else ""
    return one.name, Text("applied", style="bold red"), worst, f"{one.energy:.1e}", cell(one.seconds)
