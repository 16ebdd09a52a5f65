"""Which cells may run now, and which need not run at all. Decided from ended cells alone, so that a campaign that was
broken off and resumed makes the same choices, and never from the truth: only from statuses and the attacks' own checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from leakscope.audit.cell import Cell, Role
from leakscope.audit.record import FAILED, REFUSED, SKIPPED, Record

__all__ = ["SETTLED", "Ended", "Schedule"]

SETTLED: Final = 1e-4
"""The self-check's residual below which a closed form has settled its target: optimisation could add nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What the schedule needs to know of a record."""

    status: str
    energy: float
    steps: int

    @staticmethod
    def of(record: Record) -> Ended:
        return Ended(status=record.status, energy=record.energy, steps=record.steps)

    @property
    def ran(self) -> bool:
        """Whether an attack was carried out: neither refused, nor skipped, nor failed."""
        return self.status not in (FAILED, REFUSED, SKIPPED)

    @property
    def settles(self) -> bool:
        """A closed form (no steps) that explains the signal up to rounding."""
        return self.ran and self.steps == 0 and self.energy <= SETTLED


class Schedule:
    """The order of a campaign: lower rungs first, controls after their attacks, self-tests after all attacks."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells = tuple(cells)
        self._rungs: dict[tuple[object, ...], list[Cell]] = {}
        self._attacks: dict[tuple[object, ...], list[Cell]] = {}
        for cell in self._cells:
            if cell.role is Role.ATTACK:
                self._rungs.setdefault(cell.group, []).append(cell)
                self._attacks.setdefault((cell.attack,), []).append(cell)
                self._attacks.setdefault(_shot(cell), []).append(cell)
                self._attacks.setdefault((Role.IDENTIFIABILITY, cell.target), []).append(cell)

    def needless(self, cell: Cell, ended: Mapping[str, Ended]) -> str | None:
        """Why ``cell`` need not run, or ``None``; only asked of cells that are ready."""
        if cell.role is Role.ATTACK:
            for lower in self._lower(cell):
                if ended[lower.key].settles:
                    return f"{lower.attack_name} has settled this batch: its own check leaves nothing unexplained."
            return None
        relied = self._relied_on(cell)
        if cell.role is Role.COST:
            return None
        if cell.role is Role.IDENTIFIABILITY:
            settled = any(ended[one.key].settles for one in relied)
            return "A closed form gave this target away: the information is there." if settled else None
        if relied and not any(ended[one.key].ran for one in relied):
            return "The attack was not carried out, so there is nothing to compare with."
        return None

    def ready(self, cell: Cell, ended: Mapping[str, Ended]) -> bool:
        """Whether everything that ``cell`` waits for has ended."""
        waits = self._lower(cell) if cell.role is Role.ATTACK else self._relied_on(cell)
        return all(one.key in ended for one in waits)

    def _lower(self, cell: Cell) -> list[Cell]:
        return [one for one in self._rungs.get(cell.group, ()) if one.rung < cell.rung]

    def _relied_on(self, cell: Cell) -> list[Cell]:
        if cell.role is Role.CONTROL:
            return self._attacks.get(_shot(cell), [])
        if cell.role is Role.SELF_TEST:
            return self._attacks.get((cell.attack,), [])
        if cell.role is Role.IDENTIFIABILITY:
            return self._attacks.get((Role.IDENTIFIABILITY, cell.target), [])
        return []


def _shot(cell: Cell) -> tuple[object, ...]:
    """An attack and its control share all of this."""
    return (cell.target, cell.attacker, cell.attack_name, cell.batch, cell.seed)
