"""Every attempt on one batch, judged against its control and the gallery."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from leakscope.audit.cell import Cell, Role
from leakscope.audit.findings import ImageFinding, Level
from leakscope.audit.identification import Candidate, Gallery, identify, thumbnails
from leakscope.audit.images import load_images
from leakscope.audit.policy import Policy
from leakscope.audit.stored import Shot
from leakscope.audit.verdict import Decision, Measured, decide
from leakscope.errors import BadInput
from leakscope.types import InputSpec

__all__ = ["Judged", "judge_batch"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One reconstruction of image ``index`` of a batch: where it comes from, what was measured, what was decided."""

    shot: Shot
    index: int
    measured: Measured
    decision: Decision
    control: dict[str, float]

    @property
    def order(self) -> tuple[int, float, float]:
        """The larger, the worse for the client."""
        level, m = self.decision.level, self.measured
        return (level.severity, *((m.psnr, m.correlation) if level is Level.EXACT else (m.correlation, m.psnr)))

    def finding(self) -> ImageFinding:
        """What it says about its image."""
        record, m = self.shot.record, self.measured
        assert record is not None
        layout = {} if m.control_correlation is None else {"correlation": m.control_correlation}
        return ImageFinding(
            name=record.pictures[self.index].name,
            level=self.decision.level,
            reason=self.decision.reason,
            cell=self.shot.cell.key,
            index=self.index,
            attack=self.shot.cell.attack_name,
            seed=self.shot.cell.seed,
            scores=self.shot.scores(self.index) | {"correlation": m.correlation},
            control=self.control | layout,
            rank=m.rank,
            gallery=m.gallery,
            p_value=m.p_value,
        )


def judge_batch(
    attacks: Sequence[Shot], controls: Sequence[Shot], shots: Iterable[Shot], policy: Policy, base: Path | None
) -> list[list[Judged]]:
    """For every image of a batch, every attempt on it that brought something back; empty where none did.

    ``shots`` are all cells of the campaign: originals of other batches of the same images serve as distractors.
    """
    ran = [shot for shot in attacks if shot.brought]
    if not ran:
        return []
    beside = {shot.cell.key: [c for c in controls if _same_attack(c.cell, shot.cell)] for shot in ran}
    brought = {key: [c for c in found if c.brought] for key, found in beside.items()}
    gallery = Gallery.of(_shape(ran[0]), _kin(ran[0], shots, base))
    judged: list[list[Judged]] = []
    for index, original in enumerate(ran[0].originals()):
        candidates = [
            Candidate(images=shot.reconstructions(), index=index, control=_pictures(brought[shot.cell.key]))
            for shot in ran
        ]
        row: list[Judged] = []
        for shot, found in zip(ran, identify(original, candidates, gallery), strict=True):
            best = _best_control(brought[shot.cell.key], index)
            measured = Measured(
                psnr=shot.score("psnr", index),
                ssim=shot.score("ssim", index),
                correlation=found.correlation,
                p_value=found.p_value,
                rank=found.rank,
                gallery=found.gallery,
                kin_rank=found.kin_rank,
                kin=found.kin,
                blank_psnr=shot.blank_psnr(index),
                control_psnr=best.get("psnr"),
                control_ssim=best.get("ssim"),
                control_correlation=found.control_correlation,
                control_refused=any(c.refused for c in beside[shot.cell.key]),
            )
            decision = decide(measured, policy)
            row.append(Judged(shot=shot, index=index, measured=measured, decision=decision, control=best))
        judged.append(row)
    return judged


def _same_attack(one: Cell, other: Cell) -> bool:
    """The same method with the same settings, whatever the seed."""
    return (one.attack, dict(one.options)) == (other.attack, dict(other.options))


def _pictures(controls: Sequence[Shot]) -> Tensor | None:
    return torch.cat([control.reconstructions() for control in controls]) if controls else None


def _best_control(controls: Sequence[Shot], index: int) -> dict[str, float]:
    """The best of every metric over the controls' seeds."""
    better = {
        name: up for c in controls if c.record for name, up in c.record.scores.get("higher_is_better", {}).items()
    }
    values = {name: [c.score(name, index) for c in controls] for name in better}
    known = {name: [v for v in found if not math.isnan(v)] for name, found in values.items()}
    return {name: (max if better[name] else min)(found) for name, found in known.items() if found}


def _shape(shot: Shot) -> tuple[int, int, int]:
    assert shot.record is not None
    return shot.record.target.shape


def _kin(own: Shot, shots: Iterable[Shot], base: Path | None) -> Tensor | None:
    """Pictures of the originals' kind: the campaign's other batches of the same images, and public ones."""
    batches: dict[int, Tensor] = {}
    for shot in shots:
        cell = shot.cell
        if cell.role is not Role.ATTACK or cell.images_name != own.cell.images_name or cell.batch == own.cell.batch:
            continue
        if cell.batch not in batches and shot.brought and _shape(shot) == _shape(own):
            batches[cell.batch] = shot.originals()
    found = [batches[batch] for batch in sorted(batches)]
    public = own.cell.public.get("from")
    if public and base is not None and own.record is not None:
        spec = InputSpec(shape=_shape(own), num_classes=own.record.target.num_classes)
        with suppress(BadInput):  # moved since: the test goes on without them
            found.append(thumbnails(load_images(public, spec, base=base).batch.images))
    return torch.cat(found) if found else None
