"""A finding in one or two plain sentences, for a privacy officer. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

from leakscope.audit.findings import Attempt, Evidence, ImageFinding, Level
from leakscope.audit.record import FAILED, REFUSED, SKIPPED

__all__ = ["PENDING", "summary"]

PENDING = "not run"
"""The status of a cell that has no record yet."""


def summary(level: Level, images: Sequence[ImageFinding], evidence: Evidence) -> str:
    """What was found on one target by one attacker, and what it rests on."""
    hit = [image for image in images if image.level is level]
    share = f"{len(hit)} of {_count(len(images), 'image')}"
    if level is Level.EXACT:
        return f"{share} came back exactly{_by(hit)}: whoever receives this update has the pictures."
    if level is Level.RECOGNISABLE:
        return f"{share} came back so that a person would know {_them(hit)} again{_by(hit)}."
    if level is Level.TRACES:
        return (
            f"Traces of {share} came back{_by(hit)}: enough to tell {_them(hit)} from other pictures by computer, too "
            "little to know what is seen."
        )
    if level is Level.NOTHING:
        return f"Nothing of {_count(len(images), 'image')} was found. {_tried(evidence)}{_information(evidence)}"
    reason = hit[0].reason if hit else "No attack is planned."
    return f"Nothing can be said, which must not be read as safe. {reason}{_information(evidence)}"


def _by(hit: Sequence[ImageFinding]) -> str:
    attacks = list(dict.fromkeys(image.attack for image in hit if image.attack))
    return f" by {_and(attacks)}" if attacks else ""


def _them(hit: Sequence[ImageFinding]) -> str:
    return "it" if len(hit) == 1 else "them"


def _tried(evidence: Evidence) -> str:
    """Which attacks ran and at what cost, which of them are known to work here, and why others did not run."""
    attacks = [a for a in evidence.attempts if a.role == "attack"]
    ran = [a for a in attacks if a.status not in (FAILED, REFUSED, SKIPPED, PENDING)]
    passed = {test.attack for test in evidence.self_tests if test.passed}
    steps, seconds = sum(a.steps for a in ran), sum(a.seconds for a in ran)
    cost = f"{steps:,} steps, {seconds:.0f} s" if steps else f"{seconds:.1f} s"
    text = f"Tried: {_and(_names(ran))} ({_count(len(ran), 'run')}, {cost})."
    proven = [name for name in _names(ran) if name in passed]
    if proven:
        text += f" On a target known to leak, {_and(proven)} {'gets' if len(proven) == 1 else 'get'} through here."
    doubtful = [name for name in _names(ran) if name not in passed]
    if doubtful:
        text += f" Without a passed self-test: {_and(doubtful)}."
    for status, words in ((REFUSED, "Refused"), (FAILED, "Failed")):
        names = _names([a for a in attacks if a.status == status])
        if names:
            text += f" {words}: {_and(names)}."
    return text


def _information(evidence: Evidence) -> str:
    words = evidence.identifiability.get("summary")
    return f" {words}" if isinstance(words, str) and words else ""


def _names(attempts: Sequence[Attempt]) -> list[str]:
    return list(dict.fromkeys(a.attack for a in attempts))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number:,} {word}s"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"
