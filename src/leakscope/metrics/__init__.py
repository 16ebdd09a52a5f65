"""How close a reconstruction came to its original: one metric per file, one number per image."""

from __future__ import annotations

from leakscope.metrics.base import METRICS, Metric, metric
from leakscope.metrics.scores import Scores, score

__all__ = ["METRICS", "Metric", "Scores", "metric", "score"]
