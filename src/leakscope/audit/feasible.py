"""Feasible or not: the rows of a study on several models, judged as a campaign's cells are, with their evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from leakscope.attacks.analytic.scan import closed_forms
from leakscope.audit.cell import Cell, Role
from leakscope.audit.findings import Level
from leakscope.audit.judge_batch import Judged, judge_batch
from leakscope.audit.policy import Policy
from leakscope.audit.record import read_record
from leakscope.audit.stored import Shot
from leakscope.audit.study import Conclusion
from leakscope.audit.study_rows import Row

__all__ = ["CONTROL", "feasible"]

CONTROL: Final = " (control)"
"""Ends the name of an attack whose update was replaced by noise."""


def feasible(rows: Sequence[Row], out: Path) -> list[Conclusion]:
    """For every model and mode: whether an attack brought back something recognisable, which, and how hard it tried.

    The verdict is a campaign's (:mod:`leakscope.audit.verdict`): image by image, beyond the control, and picked out of
    a gallery. "no" says that these runs failed, with this budget, and nothing more.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((str(row.at["model"]), str(row.at["mode"])), []).append(row)
    return [_conclude(model, mode, group, out) for (model, mode), group in groups.items()]


def _conclude(model: str, mode: str, rows: Sequence[Row], out: Path) -> Conclusion:
    shots = [_shot(row, out) for row in rows]
    attacks = [shot for shot in shots if shot.cell.role is Role.ATTACK]
    controls = [shot for shot in shots if shot.cell.role is Role.CONTROL]
    forms = set(closed_forms())
    judged = [one for image in judge_batch(attacks, controls, [], Policy(), None) for one in image]
    solved = [one for one in judged if one.shot.cell.attack in forms]
    matched = [one for one in judged if one.shot.cell.attack not in forms]
    refused = sum(shot.record is None for shot in attacks if shot.cell.attack in forms)
    tried = sum(shot.cell.attack in forms for shot in attacks)
    found: dict[str, str | float] = {"model": model, "mode": mode}
    found |= {key: value for key, value in rows[0].extra.items() if key == "model accuracy"}
    found["feasible"] = _answer(matched)
    found |= _evidence(matched)
    found["closed form"] = _answer(solved)
    if solved:
        best = max(solved, key=lambda one: one.order)
        found["closed form by"] = f"{best.shot.cell.attack}, {best.measured.psnr:.1f} dB"
    else:
        found["closed form by"] = f"{refused} of {tried} refused"
    return found


def _answer(judged: Sequence[Judged]) -> str:
    if not judged:
        return "not run"
    leaked = any(one.decision.level.severity >= Level.RECOGNISABLE.severity for one in judged)
    return "yes" if leaked else "no"


def _evidence(judged: Sequence[Judged]) -> dict[str, str | float]:
    """The best picture, what the control reached on it, and the budget."""
    if not judged:
        return {}
    best = max(judged, key=lambda one: one.order)
    record = best.shot.record
    assert record is not None
    return {
        "verdict": str(best.decision.level),
        "best image": record.pictures[best.index].name,
        "ssim": best.measured.ssim,
        "control ssim": math.nan if best.measured.control_ssim is None else best.measured.control_ssim,
        "runs": max(1, len(record.energies)),
        "steps": record.steps,
        "seconds": round(record.seconds, 1),
        "picture": f"{best.shot.folder.name}/{record.pictures[best.index].reconstruction}",
    }


def _shot(row: Row, out: Path) -> Shot:
    """A row as the judge sees a campaign's cell; one that was refused has no record."""
    name = str(row.at["attack"])
    cell = Cell(
        role=Role.CONTROL if name.endswith(CONTROL) else Role.ATTACK,
        target=str(row.at["model"]),
        model_name=str(row.at["model"]),
        images_name="",
        client_name=str(row.at["mode"]),
        defence_name="",
        attacker="",
        attack_name=name,
        model={},
        images={},
        batch=0,
        client={},
        attack=name.removesuffix(CONTROL),
    )
    folder = out / row.folder
    return Shot(cell=cell, folder=folder, record=read_record(folder) if row.metrics else None)
