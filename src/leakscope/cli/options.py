"""Options that several commands share, and turning what people type into values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from leakscope.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from leakscope.types import Attack, ThreatModel

__all__ = [
    "SEEDS",
    "Channels",
    "Classes",
    "ImageSize",
    "Labels",
    "LabelsFile",
    "ModelName",
    "Settings",
    "Track",
    "Weights",
    "build_attack",
    "parse_labels",
    "parse_numbers",
    "set_threads",
    "threat_named",
]

SEEDS: Final = 2**63 - 1
"""The largest seed."""

# Arguments are described in the commands' own help: typer drops their help texts with recent versions of click.
ModelName: Final = typer.Argument(metavar="MODEL", show_default=False)
_PANEL: Final = "Model"
Weights: Final = typer.Option(
    help="Weights for the model: safetensors, or a plain state dict. Without, they are drawn at random.",
    show_default=False,
    rich_help_panel=_PANEL,
)
Classes: Final = typer.Option(
    help="Number of classes, if not the model's own.", show_default=False, rich_help_panel=_PANEL
)
ImageSize: Final = typer.Option(
    help="Side of the images in pixels, if not the model's own.", show_default=False, rich_help_panel=_PANEL
)
Channels: Final = typer.Option(
    help="1 for greyscale, 3 for colour, if not the model's own.", show_default=False, rich_help_panel=_PANEL
)

Labels: Final = typer.Option(help="Classes of the images, such as 3,5; by default from folder names, else 0, 1, 2, …")
LabelsFile: Final = typer.Option(
    help="For a detector: JSON with the boxes of every image (COCO's, or name: [[class, x, y, w, h]] in shares of the "
    "image). Without, YOLO's .txt files beside the images.",
    show_default=False,
)

Settings: Final = typer.Option("--set", metavar="KEY=VALUE", help="Any other option of the attack; may be repeated.")

Track: Final = typer.Option(
    metavar="WHERE",
    help="Log losses as well: tensorboard (in the output folder, with pictures), tensorboard:DIR or mlflow:URI.",
    show_default=False,
)


def parse_labels(text: str | None, file: Path | None = None) -> list[int] | Path | None:
    """``3,5`` → [3, 5]; or the file of a detector's boxes."""
    if text is not None and file is not None:
        raise BadInput("--labels are classes and --labels-file holds boxes: give one of them.")
    if text is None:
        return None if file is None else file.resolve()
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(f"--labels takes whole numbers with commas between, such as 3,5; got '{text}'.") from error


def parse_numbers(text: str, flag: str) -> tuple[float, ...]:
    """``0,0.01`` → (0, 0.01)."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise BadInput(f"{flag} takes numbers with commas between, such as 0,0.01; got '{text}'.") from error


def set_threads(count: int) -> None:
    """How many threads torch may use in this process."""
    import torch

    if count < 1:
        raise BadInput(f"--threads is {count}; it must be at least 1.")
    torch.set_num_threads(count)


def threat_named(name: str) -> ThreatModel:
    """A rung of the ladder of threat models by the name that the command line gives it."""
    from leakscope.client import threats

    # The highest rung knows the defence, which this command line cannot hand over.
    rungs = {
        "honest-server": threats.HONEST_SERVER,
        "labels": threats.WITH_LABELS,
        "statistics": threats.WITH_STATISTICS,
        "public-data": threats.WITH_PUBLIC_DATA,
    }
    if name not in rungs:
        raise UnknownName("threat model", name, rungs)
    return rungs[name]


def build_attack(
    name: str,
    *,
    steps: int | None = None,
    restarts: int | None = None,
    jobs: int | None = None,
    gradient: str | None = None,
    seconds: float | None = None,
    patience: int | None = None,
    target: float | None = None,
    pairs: Sequence[str] = (),
) -> Attack:
    """The attack ``name`` with what was asked for; ``pairs`` are ``key=value`` for any option of the attack."""
    from leakscope.attacks.configure import check_stop, configured, has_loop, options_from_text

    options = options_from_text(name, [pair for pair in pairs if not pair.startswith("@")])
    if jobs is None and restarts is not None:
        jobs = max(1, min(restarts, os.cpu_count() or 1))
    stops = {"seconds": seconds, "patience": patience, "target": target}
    loop = {"population": restarts, "workers": jobs, "gradient": gradient, **stops}
    if any(value is not None for value in loop.values()) and not has_loop(name):
        raise BadInput(f"'{name}' has no optimisation loop: restarts, jobs, gradient and stopping do not apply to it.")
    for key, value in stops.items():
        check_stop(key, value, f"--{key}")
    for key, value in {"steps": steps, **loop}.items():
        if value is None:
            continue
        if key in options:
            raise BadInput(f"'{key}' was given twice: by an option of its own and by --set {key}=….")
        options[key] = value
    files = options_from_text(name, [pair for pair in pairs if pair.startswith("@")])
    return configured(name, {**files, **options})
