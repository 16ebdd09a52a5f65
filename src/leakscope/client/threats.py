"""Threat-model presets: a ladder, each rung knowing one thing more than the one before."""

from __future__ import annotations

from typing import Final

from leakscope.types import Knows, ThreatModel

__all__ = ["HONEST_SERVER", "LADDER", "WITH_DEFENCE", "WITH_LABELS", "WITH_PUBLIC_DATA", "WITH_STATISTICS"]

HONEST_SERVER: Final = ThreatModel(name="honest server", knows=frozenset({Knows.BATCH_SIZE, Knows.HYPERPARAMETERS}))
"""Sees the update, and knows the training recipe it gave out; labels are recovered, not given."""

WITH_LABELS: Final = HONEST_SERVER.plus(Knows.LABELS)
WITH_STATISTICS: Final = WITH_LABELS.plus(Knows.BN_STATS)
WITH_PUBLIC_DATA: Final = WITH_STATISTICS.plus(Knows.PUBLIC_DATA)
WITH_DEFENCE: Final = WITH_PUBLIC_DATA.plus(Knows.DEFENCE)

LADDER: Final = (HONEST_SERVER, WITH_LABELS, WITH_STATISTICS, WITH_PUBLIC_DATA, WITH_DEFENCE)
