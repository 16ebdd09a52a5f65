"""``leakscope describe MODEL``: what a model's parameters mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text

from leakscope.cli.console import OUT
from leakscope.cli.model_options import GIVEN_MODEL, GivenModel
from leakscope.cli.option_groups import with_options
from leakscope.cli.options import ModelName

if TYPE_CHECKING:
    from leakscope.models import VisionModel

__all__ = ["describe"]


@with_options
def describe(
    model: Annotated[str, ModelName],
    of: GivenModel = GIVEN_MODEL,
) -> None:
    """Show a model's anatomy: what it takes, and where its classifier, first layer and norms are.

    MODEL is leakscope:NAME, timm:NAME, torchvision:NAME or path/to/file.py:factory.
    """
    from leakscope.models import describe as rows

    found = of.build(model)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in (*rows(found), *_transcript(found)):
        table.add_row(label, Text(value))
    OUT.print(table)


def _transcript(model: VisionModel) -> list[tuple[str, str]]:
    """The modules that git-coarse would invert this model with, from the head down."""
    import torch

    from leakscope.attacks.learned.git_coarse import CoarseGIT
    from leakscope.errors import NotApplicable

    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    try:
        network = CoarseGIT(hidden=1, bins=4096, width=3072).build(model, shapes, 1, torch.Generator())
    except NotApplicable as reason:
        return [("inversion", f"git-coarse does not apply: {reason}")]
    return [
        ("inversion", "git-coarse, a module for each link, from the head down:"),
        *(("", f"{name}: {what}") for name, what in network.graph()),
    ]
