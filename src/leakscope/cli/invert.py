"""``leakscope invert``: attack what a client would share of these images."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions, Public, Threat
from leakscope.cli.console import notice, where
from leakscope.cli.model_options import DEFAULT_MODEL, ModelOptions
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import (
    SEEDS,
    Labels,
    LabelsFile,
    ModelName,
    Settings,
    Track,
    build_attack,
    parse_labels,
    set_threads,
    threat_named,
)
from leakscope.cli.running import run_cases
from leakscope.errors import BadInput

__all__ = ["invert"]

_RUN: Final = "Run"


@with_options
def invert(
    model: Annotated[str, ModelName],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES...", show_default=False)],
    attack: Annotated[
        str, typer.Option("--attack", "-a", help="Name of the attack: see leakscope list attacks.")
    ] = "inverting-gradients",
    steps: Annotated[int | None, typer.Option(help="Steps of each restart, if not the attack's own.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=SEEDS, help="Seed of the attack: the same seed, the same result.")
    ] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output folder; by default below out/.")] = None,
    settings: Annotated[list[str] | None, Settings] = None,
    labels: Annotated[str | None, Labels] = None,
    labels_file: Annotated[Path | None, LabelsFile] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images per batch, one sub-folder each; by default all in one batch.")
    ] = None,
    of: ModelOptions = DEFAULT_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
    threat: Annotated[str, Threat] = "honest-server",
    public: Annotated[list[str] | None, Public] = None,
    inverter: Annotated[
        Path | None, typer.Option(help="Invert with this file of leakscope fit, in place of an attack.")
    ] = None,
    any_weights: Annotated[
        bool, typer.Option("--any-weights/--same-weights", help="Trust the inverter on other weights of its model.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="ATTACK|FILE",
            help="Start the optimisation from what this attack or inverter brings back, not noise.",
        ),
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(help="Independent starts; the lowest loss is kept.", rich_help_panel=_RUN)
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", help="Restarts run side by side; by default one per core.", rich_help_panel=_RUN),
    ] = None,
    gradient: Annotated[
        Literal["auto", "exact", "fast"] | None,
        typer.Option(help="How the objective is differentiated.", rich_help_panel=_RUN),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Time for each batch.", rich_help_panel=_RUN)] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many steps in vain.", rich_help_panel=_RUN)
    ] = None,
    target: Annotated[float | None, typer.Option(help="Stop at this loss.", rich_help_panel=_RUN)] = None,
    track: Annotated[str | None, Track] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each process; 1 is best beside other work.", rich_help_panel=_RUN)
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh/--resume", help="Start over, or go on from the checkpoint in the folder.", rich_help_panel=_RUN
        ),
    ] = False,
    checkpoint_every: Annotated[
        float, typer.Option(min=0, help="Seconds of work that a kill may cost.", rich_help_panel=_RUN)
    ] = 5.0,
) -> None:
    """Attack what a client would share of IMAGES while it trains MODEL.

    MODEL is leakscope:NAME, timm:NAME, torchvision:NAME or path/to/file.py:factory. IMAGES are files, folders, or
    photographs that come along, such as bundled:astronaut,cat.

    Writes each original beside its reconstruction, a contact sheet, the loss curve and record.json. Ctrl-C keeps what
    is done; the same command again goes on from there.
    """
    from leakscope.attacks import Optimisation, from_attack
    from leakscope.attacks.learned.inverter import Inverter
    from leakscope.attacks.learned.load import load_inverter
    from leakscope.audit.images import load_images, pieces
    from leakscope.audit.run import CHECKPOINT, Case
    from leakscope.audit.store import ensure_writable
    from leakscope.report.pictures import overview
    from leakscope.types import Knows, Status

    if batch_size is not None and batch_size < 1:
        raise BadInput(f"--batch-size is {batch_size}; it must be at least 1.")
    if threads is not None:
        set_threads(threads)
    configured = build_attack(
        attack,
        steps=steps,
        restarts=restarts,
        jobs=jobs,
        gradient=gradient,
        seconds=seconds,
        patience=patience,
        target=target,
        pairs=settings or [],
    )
    jobs = configured.workers if isinstance(configured, Optimisation) else 1
    if start is not None and (inverter is not None or not isinstance(configured, Optimisation)):
        raise BadInput("--start is for attacks that optimise; this one has no start.")
    knowledge, classes = threat_named(threat), parse_labels(labels, labels_file)
    protocol = client.client()
    title = attack if inverter is None else inverter.stem
    out = out or Path("out") / re.sub(r"[^\w.-]+", "-", f"{title}-{model}").strip("-")
    ensure_writable(out)
    vision = of.load(model)
    loaded = load_images(images, vision.input, classes)
    known = load_images(public, vision.input).batch if public else None
    if inverter is not None:
        fitted = load_inverter(inverter, vision, any_weights=any_weights)
        configured, attack, known = fitted, fitted.attack, known or fitted.public
    elif start is not None and isinstance(configured, Optimisation):
        first = load_inverter(Path(start), vision, any_weights=any_weights) if Path(start).is_file() else start
        known = known or (first.public if isinstance(first, Inverter) else None)
        configured = replace(configured, init=from_attack(first))
    if known is not None:  # a server that has images knows that it has them
        knowledge = knowledge.plus(Knows.PUBLIC_DATA)
    for line in (*loaded.notices, *client.notices()):
        notice(line)
    batches = pieces(loaded.batch, batch_size)
    folders = [out] if len(batches) == 1 else [out / f"batch-{index}" for index in range(len(batches))]
    cases = [
        Case(
            model=vision,
            batch=batch,
            client=protocol,
            threat=knowledge,
            public=known,
            attack_name=attack,
            attack=configured,
            seed=seed,
            stream=f"batch/{index}",
        )
        for index, batch in enumerate(batches)
    ]
    records = run_cases(
        list(zip(cases, folders, strict=True)),
        fresh=fresh,
        every=checkpoint_every,
        jobs=jobs,
        seconds=seconds,
        titles=[folder.name for folder in folders] if len(folders) > 1 else (),
        track=track,
    )
    if len(folders) > 1:
        where("all pictures", overview(out, folders[: len(records)]))
    if records[-1].status == Status.INTERRUPTED:
        kept = any((folders[len(records) - 1] / CHECKPOINT).glob("*.pt"))
        goes_on = "goes on from the last checkpoint" if kept else "starts again: no checkpoint was due yet"
        notice(f"Interrupted: the best so far is kept; the same command again {goes_on}.")
        raise typer.Exit(130)
