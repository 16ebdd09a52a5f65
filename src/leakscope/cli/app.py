"""The command group: help, version, and one place where errors turn into messages and exit codes.

Commands import what they need when they run, so that help and usage errors cost as little as they can.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from leakscope.cli import (
    audit,
    check,
    demo,
    describe,
    fit,
    gate,
    init,
    invert,
    lint,
    listing,
    plan,
    report,
    robustness,
    scan,
    serve,
    study,
    train,
    triage,
    tune,
)
from leakscope.cli.console import error, notice, say, show_log
from leakscope.errors import LeakscopeError

__all__ = ["app"]


class _Group(TyperGroup):
    """Misuse ends with a message and exit code 2, Ctrl-C with 130; anything else is a bug and shows its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        show_log()
        try:
            return super().invoke(ctx)
        except LeakscopeError as problem:
            error(str(problem))
            raise typer.Exit(2) from problem
        except KeyboardInterrupt as stop:
            notice("Interrupted.")
            raise typer.Exit(130) from stop

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph, which "rich" does not
    context_settings={"help_option_names": ["-h", "--help"]},
    # A traceback must not print private images: locals stay out of it.
    pretty_exceptions_show_locals=False,
)


def _version(asked: bool) -> None:
    if asked:
        say(f"leakscope {version('leakscope')}")
        raise typer.Exit


@app.callback(epilog="Start with **leakscope demo**, then try **leakscope invert MODEL IMAGES** on your own.")
def leakscope(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What could the other side see of my images, from what I send?

    leakscope plays the curious server of a federation: it runs a client on your images, attacks what the client
    would share, and shows what came back beside the originals.
    """


app.command("demo")(demo.demo)
app.command("init")(init.init)
app.command("plan")(plan.plan)
app.command("audit")(audit.audit)
app.command("report")(report.report)
app.command("serve")(serve.serve)
app.command("invert")(invert.invert)
app.command("fit")(fit.fit)
app.command("scan")(scan.scan)
app.command("check")(check.check)
app.command("gate")(gate.gate)
app.command("lint")(lint.lint)
app.command("study")(study.study)
app.command("robustness")(robustness.robustness)
app.command("triage")(triage.triage)
app.command("tune")(tune.tune)
app.command("train")(train.train)
app.command("list")(listing.listing)
app.command("describe")(describe.describe)
