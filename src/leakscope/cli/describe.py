"""``leakscope describe MODEL``: what a model's parameters mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text

from leakscope.cli.console import OUT
from leakscope.cli.options import Channels, Classes, ImageSize, ModelName, Weights

__all__ = ["describe"]


def describe(
    model: Annotated[str, ModelName],
    weights: Annotated[Path | None, Weights] = None,
    num_classes: Annotated[int | None, Classes] = None,
    image_size: Annotated[int | None, ImageSize] = None,
    channels: Annotated[int | None, Channels] = None,
) -> None:
    """Show a model's anatomy: what it takes, and where its classifier, first layer and norms are.

    MODEL is leakscope:NAME, timm:NAME, torchvision:NAME or path/to/file.py:factory.
    """
    from leakscope.models import describe as rows
    from leakscope.models import load_model

    found = load_model(model, num_classes=num_classes, image_size=image_size, channels=channels, weights=weights)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows(found):
        table.add_row(label, Text(value))
    OUT.print(table)
