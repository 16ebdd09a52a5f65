"""``leakscope tune``: find better settings for an attack, by trying."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.table import Table
from rich.text import Text

from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions, Threat
from leakscope.cli.console import ERR, OUT, notice, say, where
from leakscope.cli.interrupt import Interrupt
from leakscope.cli.model_options import DEFAULT_MODEL, ModelOptions
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import SEEDS, Labels, LabelsFile, ModelName, Track, parse_labels, set_threads, threat_named
from leakscope.cli.progress import Watch, together
from leakscope.cli.running import run_cases
from leakscope.cli.tables import cell

if TYPE_CHECKING:
    from leakscope.audit.tuned import Row, Tuned
    from leakscope.audit.tuner import Tuning
    from leakscope.types import Callback

__all__ = ["tune"]

_STUDY: Final = "Study"


@with_options
def tune(
    model: Annotated[str, ModelName],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES...", show_default=False)],
    attack: Annotated[
        str, typer.Option("--attack", "-a", help="Name of the attack: see leakscope list attacks.")
    ] = "inverting-gradients",
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Trials of the study, over all processes.")] = 30,
    objective: Annotated[
        Literal["realistic", "oracle"],
        typer.Option(help="Go by the attacker's own loss, or by SSIM to the originals: an upper bound."),
    ] = "realistic",
    each: Annotated[
        bool,
        typer.Option(
            "--each/--together",
            help="Every image is a candidate of its own, and the search chooses among them, too; or all are one batch.",
        ),
    ] = False,
    runs: Annotated[
        int,
        typer.Option(min=0, help="Then so many runs with the best settings, each from a new start."),
    ] = 0,
    steps: Annotated[int | None, typer.Option(help="Steps of each trial, if not the attack's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="Seed of the search and of its attacks.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output folder; by default below out/.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the attack that is not searched."),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LOW:HIGH[:log]",
            help="Search this option, in this range, or among A|B|C; by default all weights and rates.",
        ),
    ] = None,
    labels: Annotated[str | None, Labels] = None,
    labels_file: Annotated[Path | None, LabelsFile] = None,
    of: ModelOptions = DEFAULT_MODEL,
    client: ClientOptions = DEFAULT_CLIENT,
    threat: Annotated[str, Threat] = "honest-server",
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="postgresql://…, sqlite:///FILE or journal:FILE; by default an SQLite file in the output folder.",
            rich_help_panel=_STUDY,
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(help="Name of the study; the objective is added to it.", rich_help_panel=_STUDY),
    ] = None,
    pruner: Annotated[
        Literal["median", "halving", "none"],
        typer.Option(help="How trials that fall behind are given up.", rich_help_panel=_STUDY),
    ] = "median",
    grace: Annotated[
        float,
        typer.Option(
            min=1, help="Seconds without a sign of life until a process counts as dead.", rich_help_panel=_STUDY
        ),
    ] = 60.0,
    track: Annotated[str | None, Track] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; 1 is best beside other work.")] = None,
) -> None:
    """Search for settings with which an attack gets further on what a client would share of IMAGES.

    The same command in several processes, or on several machines with one --storage, works on one study; again after
    a break, it goes on. The best settings are written to tuned.json, for leakscope invert --set @tuned.json.

    With --objective oracle the truth chooses, which no attacker can do: that is an upper bound, and labelled so.
    """
    from leakscope.attacks.configure import configured, options_from_text
    from leakscope.audit.images import load_images
    from leakscope.audit.run import Case
    from leakscope.audit.store import ensure_writable
    from leakscope.audit.tuner import Tuning
    from leakscope.audit.tuner_space import default_space, space_from_text

    if threads is not None:
        set_threads(threads)
    pairs = [*(settings or []), *([] if steps is None else [f"steps={steps}"])]
    fixed = options_from_text(attack, pairs)
    space = space_from_text(attack, search, fixed) if search else default_space(attack, fixed)
    knowledge, classes, protocol = threat_named(threat), parse_labels(labels, labels_file), client.client()
    plain = re.sub(r"[^\w.-]+", "-", f"{attack}-{model}").strip("-")
    out = out or Path("out") / f"tune-{plain}"
    ensure_writable(out)
    vision = of.load(model)
    loaded = load_images(images, vision.input, classes)
    for line in (*loaded.notices, *client.notices()):
        notice(line)
    tuning = Tuning(
        case=Case(
            model=vision,
            batch=loaded.batch,
            client=protocol,
            threat=knowledge,
            attack_name=attack,
            attack=configured(attack, fixed),
            seed=seed,
        ),
        options=fixed,
        space=space,
        objective=objective,
        trials=trials,
        each=each,
        pruner=pruner,
        beat=min(10.0, grace / 4),
        grace=grace,
    )
    place = storage or f"sqlite:///{out.resolve() / 'study.db'}"
    with Interrupt("Stopping; the trial under way is given back. Ctrl-C again stops at once.") as stop:
        tuned = _run(tuning, place, study or plain, out, track, stop)
    _show(tuned, out, loaded.batch.names)
    if runs and not stop.asked:
        _repeat(tuning, tuned, runs, out)
    if stop.asked:
        notice("Interrupted: the same command again goes on from here.")
        raise typer.Exit(130)


def _run(tuning: Tuning, place: str, study: str, out: Path, track: str | None, stop: Interrupt) -> Tuned:
    """Work on the study, with a bar for the trial under way and a line for each that has ended here."""
    from leakscope.audit.trackers import PICTURES, tracking
    from leakscope.audit.tuner import tune as work_on
    from leakscope.audit.tuner_storage import shown

    say(
        f"{tuning.case.attack_name}: {tuning.trials} trials of {', '.join(tuning.space)}, objective {tuning.objective}."
    )
    OUT.print(Text.assemble((f"{'storage':<15}", "dim"), shown(place)), soft_wrap=True)
    with tracking(track, run=study, folder=out, pictures=track == PICTURES) as tracker, ExitStack() as bar:

        def watching(slot: int) -> Callback:
            watch = bar.enter_context(Watch(ERR, title=f"trial {slot + 1}/{tuning.trials}"))
            return together(watch, tracker.scope(f"trial-{slot + 1}"))

        def ended(row: Row) -> None:
            bar.close()
            say(_line(row, oracle=tuning.objective == "oracle"))

        return work_on(tuning, storage=place, study=study, callback=watching, ended=ended, stop=stop)


def _line(row: Row, *, oracle: bool) -> str:
    value = "" if row.value is None else f"{'SSIM (oracle)' if oracle else 'matching loss'} {cell(row.value)}, "
    options = ", ".join(f"{key} {_plain(value)}" for key, value in row.options.items())
    return f"trial {row.slot + 1}: {row.state}{f' ({row.why})' if row.why else ''}, {value}{options}"


def _repeat(tuning: Tuning, tuned: Tuned, runs: int, out: Path) -> None:
    """The best settings from other starts: a lucky trial must not stand for what an attack can do."""
    from leakscope.attacks.configure import configured
    from leakscope.audit.tuner_targets import target_case
    from leakscope.types import Status

    if tuned.best is None or tuned.options is None:
        return
    case = target_case(tuning.case, tuned.best.image)
    case = replace(case, attack=configured(case.attack_name, tuned.options))
    places = [(replace(case, stream=f"run/{index}"), out / "runs" / f"run-{index}") for index in range(runs)]
    records = run_cases(places, brief=True)
    if records[-1].status == Status.INTERRUPTED:
        notice("Interrupted: the same command again goes on from here.")
        raise typer.Exit(130)
    found = [(record.energy, (record.metric("ssim") or [math.nan])) for record in records]
    scored = [(energy, sum(values) / len(values)) for energy, values in found]
    if any(math.isnan(ssim) for _, ssim in scored):
        say(f"{runs} runs; the lowest loss is {cell(min(energy for energy, _ in scored))}.")
        return
    _, realistic = min(scored)
    mean = sum(ssim for _, ssim in scored) / runs
    say(
        f"{runs} runs: SSIM {cell(realistic)} for the run of lowest loss (realistic), "
        f"{cell(max(ssim for _, ssim in scored))} for the best one (ORACLE), {cell(mean)} on average."
    )


def _show(tuned: Tuned, out: Path, names: Sequence[str]) -> None:
    """Write the answer, draw the history, and say both."""
    from leakscope.audit.store import replacing
    from leakscope.audit.tuned import COMPLETE, TUNED
    from leakscope.report.tuning import tuning_history

    with replacing(out / TUNED) as part:
        part.write_text(tuned.to_text(), encoding="utf-8")
    ended = f"{tuned.count(COMPLETE)} complete, {tuned.count('pruned')} pruned, {tuned.count('fail')} failed"
    say(f"{len(tuned.rows)} of {tuned.trials} trials have ended: {ended}.")
    best = tuned.best
    if best is None:
        say("No trial has come to its end: there are no settings to recommend.")
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for key, value in best.options.items():
            table.add_row(Text(key, style="dim"), _plain(value))
        OUT.print(table)
        on = "" if best.image is None else f" on {names[best.image] if names else best.image}"
        say(f"Best is trial {best.slot + 1}{on}: {cell(best.value or 0.0)}, {tuned.measure}.")
        own = tuned.realistic
        if tuned.upper_bound and own is not None and own.value is not None:
            said = f"the attacker's own loss chooses trial {own.slot + 1} among these: {cell(own.value)}"
            say(f"Without the truth, {said}.")
    where("settings", out / TUNED)
    where("history", tuning_history(out))


def _plain(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
