"""What an audit found, in plain words: the question, the answer, and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leakscope.audit.campaign import NO_DEFENCE
from leakscope.audit.findings import Finding, Findings, Level
from leakscope.report.costs import Cost, cost_of
from leakscope.report.load import Audit

__all__ = [
    "MEANING",
    "Advice",
    "Change",
    "advice",
    "answer",
    "count",
    "duration",
    "headline",
    "question",
    "setting",
    "tally",
]


MEANING: Final[Mapping[Level, str]] = {
    Level.EXACT: "the image came back as it was",
    Level.RECOGNISABLE: "a person would know the image again",
    Level.TRACES: "something came back: enough to tell the image from others by computer, too little to see it",
    Level.NOTHING: "no attack that was tried here brought anything back; this is no proof that none could",
    Level.UNKNOWN: "nothing can be said: no attack ran to its end, or none passed its self-test",
}

_HEADLINES: Final[Mapping[Level, str]] = {
    Level.EXACT: "Images come back exactly.",
    Level.RECOGNISABLE: "Images come back, and can be recognised.",
    Level.TRACES: "Traces of images come back.",
    Level.NOTHING: "Nothing was found with the attacks tried.",
    Level.UNKNOWN: "There is no answer yet.",
}
_ADVERB: Final[Mapping[Level, str]] = {
    Level.EXACT: "exactly",
    Level.RECOGNISABLE: "recognisably",
    Level.TRACES: "in traces",
}


def question(audit: Audit) -> str:
    """The operator's question, or the one every audit asks."""
    asked = audit.manifest.campaign.get("question")
    return str(asked) if asked else "What could the server see of the clients' images?"


def headline(findings: Findings) -> str:
    """The answer in a few words."""
    nothing = any(f.level is Level.NOTHING for f in findings.findings)
    unfinished = findings.level is Level.NOTHING and findings.done < findings.total
    if unfinished or (findings.level is Level.UNKNOWN and nothing):
        return "Nothing was found so far, and some of it is still open."
    return _HEADLINES[findings.level]


def answer(findings: Findings) -> str:
    """The answer in one sentence: the worst that happened, where, and to how many images."""
    if findings.level is Level.UNKNOWN:
        nothing = sum(f.level is Level.NOTHING for f in findings.findings)
        some = f"Nothing was found in {nothing} of {count(len(findings.findings), 'set-up')}. In the others, no"
        return (
            f"{some if nothing else 'No'} attack ran to its end, or none passed its self-test; this must not be read "
            "as safe."
        )
    worst = max(findings.findings, key=lambda f: f.level.severity)
    if worst.level is Level.NOTHING:
        images = sum(len(finding.images) for finding in findings.findings)
        return (
            f"In {count(len(findings.findings), 'set-up')} with {count(images, 'image')}, no attack within the budget "
            "brought back more than it would have without seeing anything. That is evidence, not proof."
        )
    hit = [image for image in worst.images if image.level is worst.level]
    attacks = sorted({image.attack for image in hit if image.attack})
    by = f" with {' and '.join(attacks[:3])}" if attacks else ""
    return (
        f"From {worst.model} ({setting(worst)}), the attacker “{worst.attacker}” got {len(hit)} of "
        f"{count(len(worst.images), 'image')} back {_ADVERB[worst.level]}{by}."
    )


def setting(finding: Finding) -> str:
    """What the client does: ``sgd, no defence``."""
    defence = "no defence" if finding.defence in (NO_DEFENCE, "") else f"defence “{finding.defence}”"
    return f"{finding.client}, {defence}"


def tally(findings: Findings) -> list[tuple[Level, int]]:
    """How many set-ups there are of each verdict, worst first."""
    counts = Counter(finding.level for finding in findings.findings)
    return [(level, counts[level]) for level in Level if counts[level]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing done differently, and the verdict it was followed by."""

    what: str
    level: Level
    leaked: float
    cost: Cost | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A set-up that leaks, the changes tried that lower its verdict, and those that do not."""

    finding: Finding
    helps: tuple[Change, ...]
    fails: tuple[Change, ...]


def advice(audit: Audit) -> list[Advice]:
    """For every undefended set-up that leaks: what differs from it in one thing only, and how that did.

    Set-ups that were audited with a defence only stand for themselves. An unknown verdict helps nobody.
    """
    everything = audit.findings.findings
    leaking = [f for f in everything if f.level.severity >= Level.TRACES.severity]
    undefended = [f for f in leaking if f.defence == NO_DEFENCE]
    known = {(f.model, f.images_name, f.client, f.attacker) for f in undefended}
    rest = [f for f in leaking if (f.model, f.images_name, f.client, f.attacker) not in known]
    given: list[Advice] = []
    for finding in [*undefended, *rest]:
        changes = [
            (Change(what=what, level=other.level, leaked=other.leaked, cost=cost_of(audit, other)))
            for other in everything
            if (what := _difference(finding, other)) is not None
        ]
        changes.sort(key=lambda change: (_FACTORS.index(change.what.partition(" ")[0]), change.level.severity))
        helps = tuple(c for c in changes if c.level is not Level.UNKNOWN and c.level.severity < finding.level.severity)
        given.append(Advice(finding=finding, helps=helps, fails=tuple(c for c in changes if c not in helps)))
    return given


_FACTORS: Final = ("defence", "client", "model")


def _difference(one: Finding, other: Finding) -> str | None:
    """``defence “noise”`` where ``other`` differs from ``one`` in its defence alone; ``None`` if in more or nothing."""
    if (one.images_name, one.attacker) != (other.images_name, other.attacker):
        return None
    differing = [name for name in _FACTORS if getattr(one, name) != getattr(other, name)]
    if len(differing) != 1:
        return None
    value = str(getattr(other, differing[0]))
    return "defence removed" if differing[0] == "defence" and value == NO_DEFENCE else f"{differing[0]} “{value}”"


def count(number: int, one: str, many: str = "") -> str:
    """``1 image``, ``2 images``."""
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def duration(seconds: float) -> str:
    """``40 seconds``, ``3 minutes``, ``2.5 hours``."""
    if seconds < 120:
        return count(round(seconds), "second")
    return count(round(seconds / 60), "minute") if seconds < 7200 else f"{seconds / 3600:.1f} hours"
