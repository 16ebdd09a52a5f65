"""``leakscope demo``: an audit of three networks, with nothing but the package, in a few minutes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.audit import run_audit
from leakscope.cli.console import say

__all__ = ["demo"]


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Output folder; the same one again goes on from there.")
    ] = Path("out/demo"),
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Cells run side by side.")] = 2,
) -> None:
    """Audit three networks that train on photographs, and write a report on what a curious server gets to see.

    A vision transformer gives its photographs away exactly, a small convolutional network until noise hides them, and
    a residual network in train mode keeps them from these attacks. Two or three minutes on two cores.
    """
    from leakscope.audit.campaign_file import parse_campaign
    from leakscope.audit.plan import cells_of

    text = (resources.files("leakscope.cli") / "demo.toml").read_text(encoding="utf-8")
    campaign = parse_campaign(text, source="the demonstration's campaign")
    cells = cells_of(campaign, Path())
    say(f"{len(cells)} cells: attacks, the same attacks without a leak, self-tests, analyses.")
    run_audit(campaign, cells, out, Path(), jobs=jobs)
