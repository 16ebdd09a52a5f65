"""Everything an optimisation attack can minimise."""

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation, Term, Weighted
from leakscope.attacks.terms.matching import Match, TagDistance
from leakscope.attacks.terms.priors import ImageNorm, TotalVariation
from leakscope.attacks.terms.statistics import BatchStatistics, RunningStatistics

__all__ = [
    "BatchStatistics",
    "Bound",
    "Candidate",
    "Evaluation",
    "ImageNorm",
    "Match",
    "RunningStatistics",
    "TagDistance",
    "Term",
    "TotalVariation",
    "Weighted",
]
