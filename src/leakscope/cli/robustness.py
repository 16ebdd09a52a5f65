"""``leakscope robustness``: what an inverter is worth where the client is not the one it was fitted for."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions, Threat
from leakscope.cli.console import ERR, OUT, notice, say, where
from leakscope.cli.interrupt import Interrupt
from leakscope.cli.model_options import DEFAULT_MODEL, ModelOptions
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import SEEDS, ModelName, Settings, parse_numbers, set_threads, threat_named
from leakscope.cli.progress import Watch, clock
from leakscope.cli.tables import cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leakscope.audit.robustness_conditions import Condition
    from leakscope.audit.study_rows import Row

__all__ = ["robustness"]


@with_options
def robustness(
    model: Annotated[str, ModelName],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES...", show_default=False)],
    public: Annotated[
        list[str],
        typer.Option(metavar="IMAGES", help="Images that the server has, to fit on; may be repeated."),
    ],
    question: Annotated[
        list[str] | None,
        typer.Option(help="noise, weights, shift, pairs or architecture; may be repeated. By default all."),
    ] = None,
    attack: Annotated[str, typer.Option("--attack", "-a", help="git-coarse or lti.")] = "git-coarse",
    steps: Annotated[int | None, typer.Option(help="Training steps of each fit, if not the attack's own.")] = None,
    settings: Annotated[list[str] | None, Settings] = None,
    public_images: Annotated[int, typer.Option(min=4, help="At most so many public images.")] = 10_000,
    private_images: Annotated[int, typer.Option(min=1, help="At most so many private images.")] = 200,
    noises: Annotated[str, typer.Option(help="Deviations of the noise in every entry of what is sent.")] = "0,0.01,0.1",
    epochs: Annotated[str, typer.Option(help="How long clients have trained since the fit.")] = "1,10,50",
    shares: Annotated[str, typer.Option(help="On which shares of the public images.")] = "0.01,0.1,1",
    lr: Annotated[float, typer.Option(help="The largest learning rate of that training.")] = 0.05,
    fewer: Annotated[float, typer.Option(help="The smaller share of the public images to fit on.")] = 0.1,
    elsewhere: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IMAGES", help="Another source to fit on; by default crops of the photographs that come along."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of the draws, the fits and the clients.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output folder; by default below out/.")] = None,
    of: ModelOptions = DEFAULT_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
    threat: Annotated[str, Threat] = "honest-server",
    threads: Annotated[int | None, typer.Option(help="Threads of the process.")] = None,
) -> None:
    """Fit an attack on --public images, and put it to clients of MODEL that differ from what it was fitted for.

    Each private image of IMAGES is a client's batch of its own. IMAGES and --public are files, folders, bundled:NAME,
    or a zip of class folders: of one with train and test, the server has train and the clients test. Writes table.csv,
    study.json and a figure. Ctrl-C keeps what is done; the same command again goes on from there.
    """
    import torch

    from leakscope.attacks.configure import options_from_text
    from leakscope.audit.labelled import load_drawn
    from leakscope.audit.robustness import run_robustness
    from leakscope.audit.robustness_conditions import QUESTIONS, Robustness
    from leakscope.audit.study import Setup
    from leakscope.audit.study_rows import TABLE
    from leakscope.random import fork
    from leakscope.report.study_figure import study_figure

    if threads is not None:
        set_threads(threads)
    options = options_from_text(attack, settings or [])
    if steps is not None:
        options["steps"] = steps
    title = "-".join(["robustness", *(question or ()), attack, model])
    out = out or Path("out") / re.sub(r"[^\w.-]+", "-", title).strip("-")
    vision, draws = of.load(model), torch.Generator().manual_seed(seed)
    for line in client.notices():
        notice(line)
    asked = Robustness(
        setup=Setup(
            model=vision,
            batch=load_drawn(images, vision.input, "test", private_images, generator=fork(draws, "private")),
            client=client.client(),
            threat=threat_named(threat),
            attack=attack,
            options=options,
            seed=seed,
        ),
        public=load_drawn(public, vision.input, "train", public_images, generator=fork(draws, "public")),
        elsewhere=load_drawn(elsewhere, vision.input, "train", public_images, generator=fork(draws, "elsewhere"))
        if elsewhere
        else None,
        questions=tuple(question or QUESTIONS),
        noises=parse_numbers(noises, "--noises"),
        epochs=tuple(int(number) for number in parse_numbers(epochs, "--epochs")),
        shares=parse_numbers(shares, "--shares"),
        lr=lr,
        fewer=fewer,
    )
    began = time.monotonic()
    with Interrupt("Stopping: what is done is kept.") as interrupt, Watch(ERR, title="robustness") as watch:

        def told(condition: Condition, number: int, count: int) -> None:
            at = f"{number + 1}/{count} {condition.question}: {condition.name}"
            left = (time.monotonic() - began) / number * (count - number) if number else None
            say(at if left is None else f"{at} (about {clock(left)} left)")
            watch.retitle(at)

        rows = run_robustness(asked, out, stop=interrupt, told=told, callback=watch)
    if rows:
        OUT.print(_table(rows))
        where("table", out / TABLE)
        where("figure", study_figure(out))
    if interrupt.asked:
        notice(f"{len(rows)} conditions are done; the same command again goes on from there.")
        raise typer.Exit(130)


def _table(rows: Sequence[Row]) -> Table:
    from leakscope.audit.robustness import BLANK, SHOWN

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("question", "condition"):
        table.add_column(heading, no_wrap=True)
    shown = [name for name in SHOWN if any(name in row.metrics for row in rows)]
    for heading in (*shown, "mean image"):  # its PSNR
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        numbers = [row.metrics.get(name) for name in shown] + [row.extra.get(f"psnr {BLANK}")]
        cells = [cell(n) if isinstance(n, float) else "" for n in numbers]
        cells[0] = cells[0] or row.status
        table.add_row(*(Text(str(value)) for value in row.at.values()), *cells)
    return table
