"""One thing in a model that looks planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

__all__ = ["Confidence", "Finding", "Weights"]

Confidence = Literal["high", "medium"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Where it is, what it is, what it would allow, the numbers that show it, and how sure that is.

    ``high``: the pattern does not come about by initialisation or training. ``medium``: it might, seldom.
    """

    parameter: str
    kind: str
    allows: str
    evidence: str
    confidence: Confidence

    def __str__(self) -> str:
        return f"{self.parameter}: {self.kind} ({self.confidence} confidence). {self.evidence} {self.allows}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One linear or convolutional layer in float64: ``rows`` (units, fan-in) and ``bias`` (units,).

    ``kernel``: elements of a convolution's window; 1 for a linear layer. ``starts_as_identity``:
    its architecture initialises it so.
    """

    name: str
    module: str
    rows: Tensor
    bias: Tensor | None
    square: bool
    classifier: bool
    kernel: int
    starts_as_identity: bool = False
