"""The models of a study: the one it is about and those that it stands beside, each with weights of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from leakscope.audit.training_files import trained_by
from leakscope.errors import BadInput, LeakscopeError, UnknownName
from leakscope.models import VisionModel, load_model

if TYPE_CHECKING:
    from leakscope.audit.study import Setup

__all__ = ["Beside", "Subject", "subjects"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A model to compare with: its name, and its weights unless they are drawn."""

    name: str
    weights: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """``NAME`` or ``NAME@WEIGHTS``."""
        name, at, weights = text.partition("@")
        if not name or (at and not weights):
            raise BadInput(f"'{text}' names no model to stand beside; write NAME or NAME@WEIGHTS.")
        return cls(name=name, weights=Path(weights) if weights else None)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model as a study's table names it, with the accuracy that its file of weights tells of."""

    label: str
    model: VisionModel
    accuracy: float | None = None

    @property
    def extra(self) -> dict[str, str | float]:
        """A column of a study's table, where there is something to say."""
        return {} if self.accuracy is None else {"model accuracy": self.accuracy}


def subjects(setup: Setup, usual: Sequence[str] = ()) -> Iterator[Subject]:
    """The model of ``setup``, then those beside it, each built when its turn comes.

    ``usual`` are the names to take where none were asked for; of these, one that does not take images of this size is
    passed over: it says nothing about the others.
    """
    yield Subject(label=setup.model.name, model=setup.model, accuracy=_accuracy(setup.weights))
    seen = {setup.model.name}
    for other in setup.beside or tuple(Beside(name=name) for name in usual):
        try:
            model = load_model(
                other.name,
                num_classes=setup.model.input.num_classes,
                image_size=setup.model.input.shape[1],
                seed=setup.seed,
                weights=other.weights,
            )
        except UnknownName:
            raise
        except LeakscopeError:
            if setup.beside:
                raise
            continue
        label = other.name
        if label in seen:
            label = f"{label}@{other.weights.stem if other.weights else 'random'}"
        seen.add(label)
        yield Subject(label=label, model=model, accuracy=_accuracy(other.weights))


def _accuracy(weights: Path | None) -> float | None:
    if weights is None or weights.suffix != ".safetensors":
        return None
    found = (trained_by(weights) or {}).get("accuracy")
    return float(found) if isinstance(found, int | float) else None
