"""What the commands on captured updates share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from leakscope.cli.client_options import DEFAULT_CLIENT, ClientOptions
from leakscope.cli.console import notice
from leakscope.cli.options import parse_labels
from leakscope.errors import BadInput

if TYPE_CHECKING:
    from leakscope.capture import Update
    from leakscope.capture.replay import Client
    from leakscope.models import VisionModel
    from leakscope.types import Batch

__all__ = ["Before", "Captured", "Model", "believed", "held_images", "read_update"]

Captured: Final = typer.Argument(metavar="UPDATE", show_default=False)
Before: Final = typer.Option(
    "--before", help="The state the server had sent out, where UPDATE is the file of the state sent back."
)
Model: Final = typer.Option("--model", "-m", help="The model that was trained.", show_default=False)


def read_update(path: Path, before: Path | None) -> Update:
    """A captured update's folder, or a pair of state files."""
    from leakscope.capture import load_update, update_from_files

    if before is not None:
        return update_from_files(before, path)
    if path.is_file():
        raise BadInput(f"'{path}' is a file: the state after training. Name the one before it with --before FILE.")
    return load_update(path)


def believed(options: ClientOptions) -> Client | None:
    """The client that was described; none if nothing was said of it."""
    if options == DEFAULT_CLIENT:
        return None
    from leakscope.client.fedavg import FedAvg
    from leakscope.client.fedsgd import FedSGD

    client = options.client()
    if not isinstance(client, FedSGD | FedAvg):
        raise BadInput("A captured update is one of a client that trains: --split-at and --augment do not apply to it.")
    return client


def held_images(sources: Sequence[str], labels: str | None, model: VisionModel) -> Batch:
    """The client's own images, for the model."""
    from leakscope.audit.images import load_images

    loaded = load_images(sources, model.input, parse_labels(labels))
    for line in loaded.notices:
        notice(line)
    return loaded.batch
