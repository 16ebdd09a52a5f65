"""What an audit found, as plain data: a verdict for every target and attacker, with the evidence behind it.

``findings.json`` lies beside ``campaign.json`` in a campaign's folder. It is derived from the records, can be made
again from them at any time, and is all that a report needs besides them. Nothing here imports torch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["FINDINGS", "Attempt", "Evidence", "Finding", "Findings", "ImageFinding", "Level", "SelfTest", "worst"]

FINDINGS = "findings.json"


class Level(enum.StrEnum):
    """How much of an image came back; in this order, worst first."""

    EXACT = "exact"
    RECOGNISABLE = "recognisable"
    TRACES = "traces"
    NOTHING = "nothing found"
    UNKNOWN = "unknown"
    """No attack ran to an end, or none passed its self-test: nothing can be said. Never counted as safe."""

    @property
    def severity(self) -> int:
        """4 for exact, 0 for unknown."""
        return len(Level) - 1 - list(Level).index(self)


def worst(levels: Iterable[Level]) -> Level:
    """The level of a whole from its parts: the worst that was found, else unknown if any part is, else nothing."""
    given = list(levels)
    found = [level for level in given if level.severity > Level.NOTHING.severity]
    if found:
        return max(found, key=lambda level: level.severity)
    return Level.NOTHING if given and Level.UNKNOWN not in given else Level.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFinding:
    """The worst that happened to one private image: by which cell, how good, and how sure that it is no accident.

    ``cell`` is the key of the cell (folder ``cells/KEY``) whose reconstruction ``index`` this is. ``control`` holds the
    same metrics of the prior-only control. ``rank`` of the true original among ``gallery`` pictures nearest to the
    reconstruction (1 = picked out first), with the p-value of doing so well by chance.
    """

    name: str
    level: Level
    reason: str
    cell: str = ""
    index: int = 0
    attack: str = ""
    seed: int = 0
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    control: Mapping[str, float] = field(default_factory=dict[str, float])
    rank: int | None = None
    gallery: int = 0
    p_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One cell that was tried: ``status`` as in its record, ``message`` with the reason of a refusal or a failure."""

    cell: str
    attack: str
    role: str
    seed: int
    status: str
    message: str
    level: Level | None = None
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """An attack on a target known to leak: did it get through here?"""

    cell: str
    attack: str
    passed: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What stands behind a verdict: everything tried, the self-tests, and whether the information is there at all.

    ``identifiability`` is what :mod:`leakscope.audit.identifiability` found (empty where it was not computed).
    """

    attempts: tuple[Attempt, ...] = ()
    self_tests: tuple[SelfTest, ...] = ()
    identifiability: Mapping[str, object] = field(default_factory=dict[str, object])
    budget: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One target under one attacker. ``images`` are sorted worst first.

    ``leaked`` is the share of images that are at least recognisable, with its confidence interval over images and
    seeds. ``summary`` is a sentence in plain words.
    """

    target: str
    model: str
    images_name: str
    client: str
    defence: str
    attacker: str
    level: Level
    summary: str
    images: tuple[ImageFinding, ...]
    leaked: float
    interval: tuple[float, float]
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All verdicts of a campaign, worst first, and the policy that made them."""

    schema: int = 1
    campaign: str
    policy: Mapping[str, object]
    done: int
    total: int
    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        return worst(finding.level for finding in self.findings)
