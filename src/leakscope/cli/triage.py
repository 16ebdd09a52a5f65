"""``leakscope triage``: which of these images give themselves away most?"""

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
from leakscope.cli.options import (
    SEEDS,
    Labels,
    LabelsFile,
    ModelName,
    Settings,
    build_attack,
    parse_labels,
    set_threads,
    threat_named,
)
from leakscope.cli.running import run_cases
from leakscope.cli.tables import cell

if TYPE_CHECKING:
    from leakscope.audit.triage import Candidate, Ranking

__all__ = ["triage"]


@with_options
def triage(
    model: Annotated[str, ModelName],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES...", show_default=False)],
    attack: Annotated[str, typer.Option("--attack", "-a", help="The attack on the most promising.")] = "feasibility",
    steps: Annotated[int | None, typer.Option(help="Steps of the attack, if not its own.")] = 300,
    keep: Annotated[int, typer.Option(min=0, help="How many of the most promising images are attacked.")] = 5,
    settings: Annotated[list[str] | None, Settings] = None,
    labels: Annotated[str | None, Labels] = None,
    labels_file: Annotated[Path | None, LabelsFile] = None,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of the attacks.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output folder; by default below out/.")] = None,
    of: ModelOptions = DEFAULT_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
    threat: Annotated[str, Threat] = "labels",
    threads: Annotated[int | None, typer.Option(help="Threads; 1 is best beside other work.")] = None,
) -> None:
    """Rank IMAGES by how much they give away to a server, with MODEL as the reference.

    First a cheap look at each of them alone: the norm of its gradient, and every closed form. Then the attack on the
    most promising. An audit of the worst case goes on with the image that came back best, on any architecture. As in
    the feasibility study, the reference should be one that leaks, such as leakscope:swin-t-32.
    """
    from leakscope.audit.images import load_images
    from leakscope.audit.run import Case
    from leakscope.audit.store import ensure_writable
    from leakscope.audit.triage import Ranking, agreement, candidates, look
    from leakscope.types import Status

    if threads is not None:
        set_threads(threads)
    configured = build_attack(attack, steps=steps, pairs=settings or [])
    knowledge, classes = threat_named(threat), parse_labels(labels, labels_file)
    out = out or Path("out") / re.sub(r"[^\w.-]+", "-", f"triage-{model}").strip("-")
    ensure_writable(out)
    vision = of.load(model)
    loaded = load_images(images, vision.input, classes)
    for line in (*loaded.notices, *client.notices()):
        notice(line)
    whole = Case(
        model=vision,
        batch=loaded.batch,
        client=client.client(),
        threat=knowledge,
        attack_name=attack,
        attack=configured,
        seed=seed,
    )
    cases = candidates(whole)
    ranked = look(cases)
    say(f"{len(ranked)} images; the attack goes on with {min(keep, len(ranked))} of them.")
    chosen = ranked[:keep]
    places = [(cases[one.index], out / f"image-{one.index}") for one in chosen]
    records = run_cases(places, brief=True, titles=[one.name for one in chosen])
    interrupted = bool(records) and records[-1].status == Status.INTERRUPTED
    ended = records[:-1] if interrupted else records
    done = [one.attacked(record) for one, record in zip(chosen, ended, strict=False)]
    ranking = Ranking(model=model, attack=attack, candidates=(*done, *ranked[len(done) :]))
    _show(ranking, agreement(done))
    where("ranking", ranking.write(out))
    if interrupted:
        notice("Interrupted: the same command again goes on from here.")
        raise typer.Exit(130)


def _show(ranking: Ranking, agreed: float | None) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("image", "gradient norm", "closed form", "self-check", "loss", "SSIM (oracle)"):
        table.add_column(heading, justify="left" if heading in ("image", "closed form") else "right", no_wrap=True)
    for one in ranking.candidates:
        table.add_row(*_row(one))
    OUT.print(table)
    if ranking.realistic is not None and ranking.oracle is not None:
        say(f"The attacker's own loss chooses {ranking.realistic.name}.")
        say(f"SSIM chooses {ranking.oracle.name} (oracle: with the truth, as the feasibility study does).")
    if agreed is not None:
        say(f"Rank correlation of gradient norm and SSIM over the {len(ranking.attacked)} attacked: {agreed:+.2f}.")


def _row(one: Candidate) -> tuple[Text | str, ...]:
    numbers = (one.residual, one.loss, one.ssim)
    check, loss, ssim = ("" if value is None else cell(value) for value in numbers)
    return Text(one.name), cell(one.norm), one.closed_form or "", check, loss, ssim
