"""Everything the command line can say about a model beside its name, in one piece that several commands take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from leakscope.cli.console import notice
from leakscope.cli.options import SEEDS, Channels, Classes, ImageSize, Weights

if TYPE_CHECKING:
    from leakscope.models import VisionModel

__all__ = ["DEFAULT_MODEL", "GIVEN_MODEL", "GivenModel", "ModelOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenModel:
    """One field for each option; ``None`` where nothing was said, so that the model's own default holds."""

    weights: Annotated[Path | None, Weights] = None
    num_classes: Annotated[int | None, Classes] = None
    image_size: Annotated[int | None, ImageSize] = None
    channels: Annotated[int | None, Channels] = None

    def build(self, name: str, *, seed: int = 0) -> VisionModel:
        """The model called ``name``; without weights they are drawn from ``seed``."""
        from leakscope.models import load_model

        return load_model(
            name,
            num_classes=self.num_classes,
            image_size=self.image_size,
            channels=self.channels,
            seed=seed,
            weights=self.weights,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(GivenModel):
    """The same for commands that attack: random weights have a seed of their own, and are spoken of."""

    model_seed: Annotated[
        int, typer.Option(min=0, max=SEEDS, help="Seed of random weights.", rich_help_panel="Model")
    ] = 0

    def load(self, name: str) -> VisionModel:
        """The model called ``name``; says so if its weights are random."""
        found = self.build(name, seed=self.model_seed)
        if self.weights is None and not name.partition(":")[0].endswith(".py"):
            notice(f"No --weights were given: {name} has random weights (seed {self.model_seed}).")
        return found


GIVEN_MODEL: Final = GivenModel()
DEFAULT_MODEL: Final = ModelOptions()
