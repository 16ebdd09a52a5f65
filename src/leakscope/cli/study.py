"""``leakscope study``: one question asked at many points, answered by a table and a figure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions, Public, Threat
from leakscope.cli.console import ERR, OUT, notice, say, where
from leakscope.cli.interrupt import Interrupt
from leakscope.cli.model_options import DEFAULT_MODEL, ModelOptions
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import SEEDS, Labels, LabelsFile, ModelName, Settings, parse_labels, threat_named
from leakscope.cli.progress import Watch, clock
from leakscope.cli.tables import cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from leakscope.audit.study import Conclusion, Point, Setup, Study
    from leakscope.audit.study_rows import Row
    from leakscope.types import Progress

__all__ = ["study"]


@with_options
def study(
    name: Annotated[str, typer.Argument(metavar="STUDY", show_default=False)],
    model: Annotated[str, ModelName],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES...", show_default=False)],
    attack: Annotated[
        str, typer.Option("--attack", "-a", help="Name of the attack: see leakscope list attacks.")
    ] = "inverting-gradients",
    steps: Annotated[int | None, typer.Option(help="Steps of each attack, if not the attack's own.")] = None,
    settings: Annotated[list[str] | None, Settings] = None,
    labels: Annotated[str | None, Labels] = None,
    labels_file: Annotated[Path | None, LabelsFile] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would run, and how long it takes.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate/--no-estimate", help="Whether a long study says first how long it takes.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of the attacks.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output folder; by default below out/.")] = None,
    of: ModelOptions = DEFAULT_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
    threat: Annotated[str, Threat] = "honest-server",
    public: Annotated[list[str] | None, Public] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[@WEIGHTS]", help="A model to compare with, perhaps with its weights; may be repeated."
        ),
    ] = None,
) -> None:
    """Run STUDY on MODEL and IMAGES: a table (table.csv, study.json) and a figure.

    `leakscope list studies` names them. MODEL and IMAGES are as for leakscope invert. Ctrl-C keeps the points that are
    done; the same command again goes on from there.
    """
    from leakscope.attacks.configure import options_from_text
    from leakscope.audit.images import load_images
    from leakscope.audit.study import CONCLUSIONS, STUDIES, Setup, conclusions, run_study
    from leakscope.audit.study_models import Beside
    from leakscope.audit.study_rows import TABLE
    from leakscope.report.study_figure import pareto_figure, study_figure
    from leakscope.report.study_sheet import study_sheet
    from leakscope.types import Knows

    chosen = STUDIES[name].value
    options = options_from_text(attack, settings or [])
    if steps is not None:
        options["steps"] = steps
    out = out or Path("out") / re.sub(r"[^\w.-]+", "-", f"{name}-{model}").strip("-")
    vision = of.load(model)
    loaded = load_images(images, vision.input, parse_labels(labels, labels_file))
    known = load_images(public, vision.input).batch if public else None
    knowledge = threat_named(threat)
    if known is not None:  # a server that has images knows that it has them
        knowledge = knowledge.plus(Knows.PUBLIC_DATA)
    for line in (*loaded.notices, *client.notices()):
        notice(line)
    setup = Setup(
        model=vision,
        batch=loaded.batch,
        client=client.client(),
        threat=knowledge,
        public=known,
        weights=of.weights,
        beside=tuple(Beside.parse(text) for text in beside or ()),
        attack=attack,
        options=options,
        seed=seed,
    )
    if plan or (chosen.costly and estimate):
        _estimate(chosen, setup, out)
        if plan:
            return
    title = [name]
    with Interrupt("Stopping: what is done is kept.") as interrupt, Watch(ERR, title=name) as watch:

        def told(point: Point) -> None:
            title[0] = ", ".join(f"{key} {value}" for key, value in point.at.items())
            watch.retitle(title[0])

        def callback(progress: Progress) -> None:
            watch(progress)
            if interrupt():
                raise KeyboardInterrupt

        rows = run_study(chosen, setup, out, stop=interrupt, told=told, callback=callback)
    if rows:
        OUT.print(_table(chosen, rows))
        if found := conclusions(chosen, rows, out):
            OUT.print(_concluded(found, OUT))
            where("conclusions", out / CONCLUSIONS)
        where("table", out / TABLE)
        where("figure", study_figure(out))
        if (sheet := study_sheet(out)) is not None:
            where("pictures", sheet)
        if (trade := pareto_figure(out)) is not None:
            where("trade-offs", trade)
    if interrupt.asked:
        notice(f"{len(rows)} points are done; the same command again goes on from there.")
        raise typer.Exit(130)
    say(f"{len(rows)} points.")


def _estimate(chosen: Study, setup: Setup, out: Path) -> None:
    """Measure and say what the points will take."""
    from leakscope.audit.study_cost import estimate_study

    total, count, instant = 0.0, 0, 0
    with (
        Interrupt("Stopping.") as interrupt,
        ERR.status("Measuring a few steps of each kind …", spinner="line") as status,
    ):
        for point, seconds in estimate_study(chosen, setup, out, stop=interrupt):
            count, instant = count + 1, instant + (seconds is None)
            total += seconds or 0.0
            status.update(f"Measuring a few steps of each kind: {', '.join(str(v) for v in point.at.values())} …")
    if interrupt.asked:
        raise typer.Exit(130)
    quick = (
        f" {instant} of them are not counted: closed forms take seconds or refuse, learned attacks are fitted first."
        if instant
        else ""
    )
    say(f"{count} points, about {clock(total)} on this machine.{quick}")


def _concluded(found: Sequence[Conclusion], console: Console) -> Table | Text:
    """A table where the console is wide enough, else a paragraph for each conclusion: none of it is cut off."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    columns = [key for key in dict.fromkeys(key for line in found for key in line) if key != "picture"]
    for heading in columns:
        table.add_column(heading)
    rows = [[_shown(line.get(key, "")) for key in columns] for line in found]
    for row in rows:
        table.add_row(*(Text(value) for value in row))
    if console.measure(table, options=console.options.update(max_width=10_000)).maximum <= console.width:
        return table
    said = (zip(columns, row, strict=True) for row in rows)
    return Text("\n").join(Text(" · ".join(f"{key} {value}" for key, value in pairs if value)) for pairs in said)


def _shown(value: object) -> str:
    return cell(value) if isinstance(value, float) else str(value)


def _table(chosen: Study, rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    axes = list(dict.fromkeys(key for row in rows for key in row.at))
    extra = list(dict.fromkeys(key for row in rows for key in row.extra))
    for heading in axes:
        table.add_column(heading, no_wrap=True)
    shown = list(dict.fromkeys([chosen.metric, "psnr", "ssim"]))
    for heading in (*shown, *extra):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        numbers = [row.metrics.get(name) for name in shown] + [row.extra.get(name) for name in extra]
        cells = ["" if n is None else n if isinstance(n, str) else cell(n) for n in numbers]
        cells[0] = cells[0] or row.status
        table.add_row(*(Text(str(row.at.get(axis, ""))) for axis in axes), *cells)
    return table
