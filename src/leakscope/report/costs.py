"""What a defence costs, where a campaign measured it.

A cost cell's record holds numbers under the names below in ``evidence["cost"]`` (so may an attack's), and the
identifiability analysis measures how much noise a defence leaves in the update. The first that all compared defences
have is what they are compared by. Nothing is estimated here: what was not measured is said to be unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from leakscope.audit.campaign import NO_DEFENCE
from leakscope.audit.cell import Role
from leakscope.audit.findings import Finding
from leakscope.report.load import Audit

__all__ = ["COSTS", "Cost", "cost_of"]

COSTS: Final[Mapping[str, str]] = {
    "accuracy_lost": "accuracy lost",
    "loss_added": "training loss added",
    "distortion": "noise in the update, relative to its size",
    "bytes": "bytes sent, relative to no defence",
    "seconds": "seconds added per update",
}
"""What may be measured, by the key in a record, in the order of what an operator cares about most."""
_WORDS: Final[Mapping[str, str]] = {
    "accuracy_lost": "{:+.1%} accuracy",
    "loss_added": "training loss {:+.3g}",
    "distortion": "noise of {:.2g} × the update",
    "bytes": "{:.3g} × the bytes",
    "seconds": "{:+.2g} s for each update",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Measured costs by their key in :data:`COSTS`."""

    values: Mapping[str, float]

    @property
    def useful(self) -> bool:
        """Whether it says what the defence costs the trained model."""
        return "accuracy_lost" in self.values or "loss_added" in self.values

    @property
    def text(self) -> str:
        """``−1.2% accuracy, 0.1 × the bytes``."""
        signs = {"accuracy_lost": -1.0}  # it is measured as a loss and read as a change
        shown = (_WORDS[key].format(signs.get(key, 1.0) * value) for key, value in self.values.items())
        return ", ".join(text.replace("-", "−") for text in shown)


def cost_of(audit: Audit, finding: Finding) -> Cost | None:
    """The mean of what the cells of ``finding`` measured, or ``None``."""
    found: dict[str, list[float]] = {}
    costs = [key for key, cell in audit.cells.items() if cell.role is Role.COST and cell.target == finding.target]
    for key in [*audit.cells_of(finding), *costs]:
        record = audit.records.get(key)
        measured: Any = record.evidence.get("cost") if record is not None else None
        if isinstance(measured, Mapping):
            for name, value in cast("Mapping[str, Any]", measured).items():
                if name in COSTS and isinstance(value, int | float) and math.isfinite(value):
                    found.setdefault(name, []).append(float(value))
    noise = finding.evidence.identifiability.get("relative_noise")
    if finding.defence != NO_DEFENCE and isinstance(noise, int | float) and math.isfinite(noise):
        found.setdefault("distortion", [float(noise)])
    values = {name: sum(found[name]) / len(found[name]) for name in COSTS if name in found}
    return Cost(values) if values else None
