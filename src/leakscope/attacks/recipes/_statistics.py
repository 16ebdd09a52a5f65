"""Whose BatchNorm statistics a recipe moves towards: the target's own, or those of another network."""

from __future__ import annotations

from typing import Final

from leakscope.attacks.terms import RunningStatistics, Term
from leakscope.attacks.terms.image_prior import ImagePrior

__all__ = ["OWN", "statistics_of"]

OWN: Final = "own"
"""The target's own statistics, for models that have some."""


def statistics_of(network: str, weights: str | None) -> Term:
    """R_BN of the target for :data:`OWN`, else R_image of the network named."""
    return RunningStatistics() if network == OWN else ImagePrior(network=network, weights=weights)
