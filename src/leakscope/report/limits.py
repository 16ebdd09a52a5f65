"""What an audit does not show, in plain words: what a reader must know before trusting a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leakscope.audit.campaign import NO_DEFENCE
from leakscope.audit.cell import Role
from leakscope.audit.findings import Finding
from leakscope.audit.record import FAILED, REFUSED, SKIPPED
from leakscope.report.load import PENDING, UNREADABLE, Audit
from leakscope.report.words import count, duration

__all__ = ["limits"]


def limits(audit: Audit) -> list[tuple[str, str]]:
    """What a reader must know before trusting a verdict: a heading and a sentence or two each."""
    found = [
        (
            "“Nothing found” is not “safe”",
            "It means that the attacks listed below, within their budget, brought back no more than they would have "
            "without seeing anything. A stronger attack, more time or more knowledge may still get through.",
        ),
        ("What was tried, and what was not", _not_tried(audit)),
        ("Do the attacks work here at all?", _self_tests(audit)),
        ("What would have come out anyway", _controls(audit)),
        ("How much was looked at", _coverage(audit)),
    ]
    defended = [f for f in audit.findings.findings if f.defence not in (NO_DEFENCE, "")]
    if defended:
        found.append(("Attackers who know the defence", _adaptive(audit, defended)))
    found.append(
        (
            "A server that plays by the rules",
            "The attacker here is honest but curious: it keeps to the protocol and looks at what it is sent. A server "
            "that changes the model in order to see more was not played.",
        )
    )
    return [(title, text) for title, text in found if text]


def _not_tried(audit: Audit) -> str:
    attacks = [key for key, cell in audit.cells.items() if cell.role is Role.ATTACK]
    statuses = Counter(audit.status(key) for key in attacks)
    parts = [f"{count(len(attacks), 'attack run was', 'attack runs were')} planned."]
    if statuses[REFUSED]:
        parts.append(f"{statuses[REFUSED]} did not apply to the target and were refused, each with its reason below.")
    if statuses[SKIPPED]:
        parts.append(f"{statuses[SKIPPED]} were not needed, as a cheaper attack had settled the matter.")
    broken = statuses[FAILED] + statuses[UNREADABLE]
    if broken:
        parts.append(f"{broken} failed and are never counted as safe.")
    if statuses[PENDING]:
        parts.append(f"{statuses[PENDING]} have not run yet.")
    return " ".join(parts)


def _self_tests(audit: Audit) -> str:
    tests = {(t.cell, t.attack): t for f in audit.findings.findings for t in f.evidence.self_tests}.values()
    if not tests:
        return "No attack was put to a self-test: whether one that found nothing would have found a leak is not known."
    failed = sorted({test.attack for test in tests if not test.passed})
    passed = sum(test.passed for test in tests)
    text = f"Each attack was also run against a target that is known to leak: {passed} of {len(tests)} got through."
    return text + (f" Not so {', '.join(failed)}: what they did not find says nothing." if failed else "")


def _controls(audit: Audit) -> str:
    controls = audit.controls()
    ran = [key for key, cell in audit.cells.items() if cell.role is Role.ATTACK and _brought_back(audit, key)]
    if not controls:
        return (
            "The campaign has no prior-only controls: how much of a picture comes from the attack's own expectations, "
            "and not from the client, was not measured."
        )
    done = sum(_brought_back(audit, controls.get(key, "")) for key in ran)
    empty = sum(audit.status(controls.get(key, "")) == REFUSED for key in ran)
    return (
        f"Of {count(len(ran), 'attack run')} that brought something back, {done} were repeated on noise instead of the "
        f"update{f', and {empty} cannot start from noise at all' if empty else ''}. An image counts as leaked only if "
        "it came back better than that, or to the last grey level."
    )


def _brought_back(audit: Audit, key: str) -> bool:
    record = audit.records.get(key)
    return record is not None and bool(record.pictures)


def _coverage(audit: Audit) -> str:
    images = {(f.images_name, image.name) for f in audit.findings.findings for image in f.images}
    seeds = {cell.seed for cell in audit.cells.values() if cell.role is Role.ATTACK}
    seconds = sum(record.seconds for record in audit.records.values())
    return (
        f"{count(len(images), 'image')}, {count(len(seeds), 'seed')} for every attack, {duration(seconds)} of attack "
        "time in all. Shares of leaked images carry a confidence interval; with few images it is wide."
    )


def _adaptive(audit: Audit, defended: Sequence[Finding]) -> str:
    knowing = {
        finding.attacker for finding in defended for cell in audit.cells_of(finding).values() if "defence" in cell.knows
    }
    if knowing:
        return (
            f"{' and '.join(f'“{name}”' for name in sorted(knowing))} knew which defence was used, and allowed for it."
        )
    return (
        "No attacker here knew which defence was used. One who knows can allow for it, and may get further: a defence "
        "that holds in this report may not hold then."
    )
