"""Which images give themselves away most? A cheap look at all of them, then an attack on the most promising.

The feasibility study does not attack an image at random: it attacks several on a reference architecture (Swin-T, which
leaks most of those it looks at) and takes the one that comes back best to all others (Valadi et al. 2025, Appendix A).
An audit that wants the worst case does the same. Two stages:

1. for every candidate, one update and every closed form, in seconds. Images that a closed form explains come first, by
   what its own check leaves unexplained; the others by the norm of their gradient: what hardly moves the weights says
   little of itself.
2. the chosen attack on the first few. They are ranked twice: by the attacker's own loss, and by SSIM to the original,
   which only the auditor can (an oracle).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, final

import torch
from torch.nn.utils import get_total_norm

from leakscope.attacks.analytic.scan import analytic_scan
from leakscope.audit.images import pieces
from leakscope.audit.record import FAILED, Record
from leakscope.audit.run import Case
from leakscope.audit.store import replacing
from leakscope.errors import BadInput
from leakscope.random import fork

__all__ = ["TRIAGE", "Candidate", "Ranking", "agreement", "candidates", "look"]

TRIAGE: Final = "triage.json"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One image: the norm of its update, and the closed form that explains it best, if any applies.

    After an attack also its ``loss`` (the attacker's own) and ``ssim`` (the auditor's).
    """

    index: int
    name: str
    norm: float
    closed_form: str | None = None
    residual: float | None = None
    loss: float | None = None
    ssim: float | None = None

    @property
    def promise(self) -> tuple[float, float]:
        """Sorts the most exposed first: by what a closed form leaves unexplained, then by the norm."""
        return (math.inf if self.residual is None else self.residual, -self.norm)

    def attacked(self, record: Record) -> Candidate:
        """With what came back."""
        if record.status == FAILED or not math.isfinite(record.energy):
            return self
        return replace(self, loss=record.energy, ssim=(record.metric("ssim") or [math.nan])[0])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All candidates, the most promising first, and the two choices among those that were attacked."""

    model: str
    attack: str
    candidates: tuple[Candidate, ...]

    @property
    def attacked(self) -> tuple[Candidate, ...]:
        return tuple(one for one in self.candidates if one.loss is not None)

    @property
    def realistic(self) -> Candidate | None:
        """The one that the attacker's own loss prefers."""
        return min(self.attacked, key=lambda one: (one.loss or 0.0, one.index), default=None)

    @property
    def oracle(self) -> Candidate | None:
        """The one that came back most like the original: chosen with the truth."""
        known = [one for one in self.attacked if one.ssim is not None and math.isfinite(one.ssim)]
        return max(known, key=lambda one: (one.ssim or 0.0, -one.index), default=None)

    def write(self, folder: Path) -> Path:
        """``triage.json``: numbers and names, no pictures."""
        content = {
            "schema": 1,
            "model": self.model,
            "attack": self.attack,
            "realistic": None if self.realistic is None else self.realistic.name,
            "oracle": None if self.oracle is None else self.oracle.name,
            "candidates": [asdict(one) for one in self.candidates],
        }
        with replacing(folder / TRIAGE) as part:
            part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return folder / TRIAGE


def candidates(case: Case) -> list[Case]:
    """A case for each image of this one's batch, alone, with a random stream of its own."""
    return [replace(case, batch=one, stream=f"image/{index}") for index, one in enumerate(pieces(case.batch, 1))]


def look(cases: Sequence[Case]) -> list[Candidate]:
    """The cheap stage: every image's update and what the closed forms make of it, the most promising first."""
    if not cases:
        raise BadInput("There are no images to choose from.")
    found: list[Candidate] = []
    for index, case in enumerate(cases):
        seen = case.observe()
        root = torch.Generator().manual_seed(case.seed)
        best = analytic_scan(seen, generator=fork(root, f"{case.stream}/attack")).best
        found.append(
            Candidate(
                index=index,
                name=case.batch.names[0] if case.batch.names else str(index),
                norm=float(get_total_norm([value for value in seen.gradients.values() if value.is_floating_point()])),
                closed_form=None if best is None else best.name,
                residual=None if best is None or not math.isfinite(best.energy) else float(best.energy),
            )
        )
    return sorted(found, key=lambda one: one.promise)


def agreement(ranked: Sequence[Candidate]) -> float | None:
    """Spearman's ρ between the norm of an image's gradient and how well the image came back; ``None`` below three.

    Whether the cheap look was worth anything, on these images.
    """
    pairs = [(one.norm, one.ssim) for one in ranked if one.ssim is not None and math.isfinite(one.ssim)]
    if len(pairs) < 3:
        return None
    columns = torch.tensor(pairs, dtype=torch.float64).T
    ranks = torch.stack([(c[:, None] > c).sum(1) + (c[:, None] == c).sum(1) / 2 for c in columns])
    value = float(torch.corrcoef(ranks)[0, 1])
    return value if math.isfinite(value) else None
