"""What a study has found, as data: ``tuned.json``, read without torch or Optuna."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast, final

from leakscope.errors import BadInput

__all__ = ["COMPLETE", "TUNED", "Row", "Tuned", "read_tuned"]

TUNED: Final = "tuned.json"
COMPLETE: Final = "complete"
_ORACLE: Final = "oracle"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial that has ended: ``complete``, ``pruned``, or ``fail``; ``why`` says what ended it early.

    ``image`` is the one it attacked, where the search chooses among images. ``matching`` is an oracle's matching loss,
    kept beside its value, so that the attacker's own choice among the same trials is known, too.
    """

    slot: int
    state: str
    value: float | None
    options: Mapping[str, Any]
    why: str = ""
    seconds: float | None = None
    image: int | None = None
    matching: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A study's trials. Values are matching losses (realistic; less is better) or SSIM (oracle; more is better)."""

    study: str
    objective: str
    attack: str
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trials: int
    rows: tuple[Row, ...] = ()

    @property
    def upper_bound(self) -> bool:
        """Whether the truth chose: then what these settings bring back is more than any attacker could count on."""
        return self.objective == _ORACLE

    @property
    def measure(self) -> str:
        """What the values are, for people: never without saying who chose."""
        if self.upper_bound:
            return "SSIM to the originals (ORACLE: chosen with the truth, an upper bound)"
        return "matching loss (realistic: the attacker's own measure)"

    @property
    def best(self) -> Row | None:
        """The best trial that went to its end; of equals the first."""
        done = [row for row in self.rows if row.state == COMPLETE and row.value is not None]
        sign = -1 if self.upper_bound else 1
        return min(done, key=lambda row: (sign * cast("float", row.value), row.slot), default=None)

    @property
    def realistic(self) -> Row | None:
        """The trial that the attacker would have chosen by its own loss: the best itself, unless this is an oracle."""
        if not self.upper_bound:
            return self.best
        done = [row for row in self.rows if row.state == COMPLETE and row.matching is not None]
        return min(done, key=lambda row: (cast("float", row.matching), row.slot), default=None)

    @property
    def options(self) -> dict[str, Any] | None:
        """The attack's options with the best settings found."""
        return None if self.best is None else {**self.fixed, **self.best.options}

    def count(self, state: str) -> int:
        return sum(row.state == state for row in self.rows)

    def to_text(self) -> str:
        """Strict JSON, the answer first."""
        best = self.best
        content = {
            "schema": 1,
            "attack": self.attack,
            "objective": self.objective,
            "upper_bound": self.upper_bound,
            "options": self.options,
            "measure": self.measure,
            "value": None if best is None else best.value,
            "image": None if best is None else best.image,
            "study": self.study,
            "fixed": dict(self.fixed),
            "trials": self.trials,
            "history": [asdict(row) for row in self.rows],
        }
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_tuned(path: Path) -> Tuned:
    """What was written to ``path``; raises :class:`BadInput` where it cannot be read."""
    try:
        content = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        rows = tuple(Row(**row) for row in content["history"])
        return Tuned(rows=rows, **{key: content[key] for key in ("study", "objective", "attack", "fixed", "trials")})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"'{path}' cannot be read as the result of a tuning: {error}.") from error
