"""``leakscope lint``: has the server planted something in this model?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from leakscope.cli.console import OUT, say
from leakscope.cli.model_options import GIVEN_MODEL, GivenModel
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import ModelName

__all__ = ["lint"]


@with_options
def lint(
    model: Annotated[str, ModelName],
    reference: Annotated[
        Path | None,
        typer.Option(help="A state the weights should be close to: an earlier round's, or another party's."),
    ] = None,
    of: GivenModel = GIVEN_MODEL,
) -> None:
    """Look for what a malicious server would plant in MODEL: imprint layers, identities, traps, fishing classifiers.

    Each finding names the parameter, what it would allow, and how sure it is. The file in --weights is read without
    running any of it.

    Exit code 0: nothing was found, which is no proof. 1: something was.
    """
    from leakscope.capture.files import read_state
    from leakscope.lint import lint as run

    vision = replace(of, weights=None).build(model)
    if of.weights is not None:
        vision.load_state_dict(read_state(of.weights))
    findings = run(vision, reference=None if reference is None else read_state(reference))
    for one in findings:
        OUT.print(Text.assemble((one.parameter, "bold"), f"  {one.kind} ({one.confidence} confidence)"), soft_wrap=True)
        say(f"  {one.evidence} {one.allows}")
    if findings:
        raise typer.Exit(1)
    say("Nothing found that looks planted. That is no proof: a linter knows the patterns it knows.")
