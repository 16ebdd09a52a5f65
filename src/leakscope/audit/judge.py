"""Judging a campaign: from its records and reconstructions to findings, one per target and attacker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from leakscope.attacks import known_to_leak
from leakscope.audit.cell import Cell, Role, read_manifest
from leakscope.audit.findings import Attempt, Evidence, Finding, Findings, ImageFinding, Level, SelfTest, worst
from leakscope.audit.findings_file import numbers
from leakscope.audit.judge_batch import Judged, judge_batch
from leakscope.audit.policy import Policy, clopper_pearson
from leakscope.audit.stored import Shot, read_shots
from leakscope.audit.summaries import summary
from leakscope.errors import UnknownName

__all__ = ["judge"]

_BAR: Final = 25.0
"""The PSNR of a self-test whose attack names none, in dB."""


def judge(folder: Path, policy: Policy | None = None, *, base: Path | None = None) -> Findings:
    """The verdicts on the campaign in ``folder`` as far as it has got, worst first; nothing is written.

    ``base`` is where the campaign's own paths start from: with it, the attackers' public images take part in the
    identification test.
    """
    policy = policy or Policy()
    manifest = read_manifest(folder)
    shots = read_shots(folder, manifest, manifest.cells)
    groups: dict[tuple[str, str], list[Shot]] = {}
    for shot in shots:
        if shot.cell.role is Role.ATTACK:
            groups.setdefault((shot.cell.target, shot.cell.attacker), []).append(shot)
    tests = _self_tests(shots)
    budget = manifest.campaign.get("budget", {})
    findings = [_finding(attacks, shots, tests, policy, budget, base) for attacks in groups.values()]
    return Findings(
        campaign=manifest.name,
        policy=policy.plain(),
        done=sum(not shot.open for shot in shots),
        total=len(shots),
        findings=tuple(sorted(findings, key=lambda f: -f.level.severity)),
    )


def _finding(
    attacks: Sequence[Shot],
    shots: Sequence[Shot],
    tests: Mapping[str, SelfTest],
    policy: Policy,
    budget: Mapping[str, object],
    base: Path | None,
) -> Finding:
    """One target under one attacker."""
    first = attacks[0].cell
    controls = [s for s in shots if s.cell.role is Role.CONTROL and _together(s.cell, first)]
    passed = {kind for kind, test in tests.items() if test.passed}
    named = {shot.cell.attack_name: shot.cell.attack for shot in attacks}
    images: list[ImageFinding] = []
    by_seed: dict[int, set[tuple[int, int]]] = {shot.cell.seed: set() for shot in attacks}
    levels: dict[str, list[Level]] = {}
    for batch in sorted({shot.cell.batch for shot in attacks}):
        here = [shot for shot in attacks if shot.cell.batch == batch]
        judged = judge_batch(here, [c for c in controls if c.cell.batch == batch], shots, policy, base)
        doubt = _doubt(here, passed, policy)
        images += _images(batch, judged, doubt)
        for one in (one for row in judged for one in row):
            levels.setdefault(one.shot.cell.key, []).append(one.decision.level)
            if one.decision.level.severity >= Level.RECOGNISABLE.severity:
                by_seed[one.shot.cell.seed].add((batch, one.index))
    evidence = Evidence(
        attempts=tuple(_attempt(shot, levels) for shot in [*attacks, *controls]),
        self_tests=tuple(replace(tests[kind], attack=name) for name, kind in named.items() if kind in tests),
        identifiability=_identifiability(shots, first.target),
        budget={**budget, **_spent(attacks)},
    )
    level = worst(image.level for image in images)
    images.sort(key=lambda image: (-image.level.severity, -image.scores.get("psnr", -math.inf)))
    leaked, interval = _share(images, list(by_seed.values()), policy.confidence)
    return Finding(
        target=first.target,
        model=first.model_name,
        images_name=first.images_name,
        client=first.client_name,
        defence=first.defence_name,
        attacker=first.attacker,
        level=level,
        summary=summary(level, images, evidence),
        images=tuple(images),
        leaked=leaked,
        interval=interval,
        evidence=evidence,
    )


def _images(batch: int, judged: Sequence[Sequence[Judged]], doubt: str | None) -> list[ImageFinding]:
    """The worst that happened to each image; nothing where nothing can be said."""
    if not judged:
        reason = doubt or "No attack brought anything back."
        return [ImageFinding(name=f"batch {batch}", level=Level.UNKNOWN, reason=reason)]
    found = [max(row, key=lambda one: one.order).finding() for row in judged]
    if doubt is None:
        return found
    return [replace(one, level=Level.UNKNOWN, reason=doubt) if one.level is Level.NOTHING else one for one in found]


def _doubt(attacks: Sequence[Shot], passed: set[str], policy: Policy) -> str | None:
    """Why finding nothing in this batch would mean nothing, or ``None`` if it means something."""
    waiting = sum(shot.open for shot in attacks)
    if waiting:
        return f"{waiting} of {len(attacks)} planned attacks have not ended yet."
    concluded = [shot for shot in attacks if shot.concluded]
    if not concluded:
        reasons = "; ".join(f"{s.cell.attack_name}: {s.status} ({s.message.rstrip('.')})" for s in attacks[:4])
        return f"No attack ran to its end. {reasons}."
    if policy.require_self_test and not any(shot.cell.attack in passed for shot in concluded):
        names = ", ".join(dict.fromkeys(shot.cell.attack_name for shot in concluded))
        return f"No attack that ran ({names}) has passed a self-test on a target known to leak: it may simply not work."
    return None


def _together(one: Cell, other: Cell) -> bool:
    return (one.target, one.attacker) == (other.target, other.attacker)


def _attempt(shot: Shot, levels: Mapping[str, list[Level]]) -> Attempt:
    record, own = shot.record, levels.get(shot.cell.key)
    return Attempt(
        cell=shot.cell.key,
        attack=shot.cell.attack_name,
        role=str(shot.cell.role),
        seed=shot.cell.seed,
        status=shot.status,
        message=shot.message,
        level=worst(own) if own and (shot.concluded or worst(own) is not Level.NOTHING) else None,
        steps=0 if record is None else record.steps,
        seconds=0.0 if record is None else record.seconds,
    )


def _self_tests(shots: Iterable[Shot]) -> dict[str, SelfTest]:
    """The self-test of every kind of attack that has one; one that passed stands for others that did not."""
    found: dict[str, SelfTest] = {}
    for shot in shots:
        attack = shot.cell.attack
        if shot.cell.role is Role.SELF_TEST and not shot.skipped and not (attack in found and found[attack].passed):
            found[attack] = _self_test(shot)
    return found


def _self_test(shot: Shot) -> SelfTest:
    try:
        leaky = known_to_leak(shot.cell.attack)
    except UnknownName:  # an attack of the user's own, from a file that is not loaded here
        leaky = None
    bar = _BAR if leaky is None else leaky.psnr
    if not shot.brought:
        return SelfTest(cell=shot.cell.key, attack=shot.cell.attack, passed=False, message=shot.message)
    reached = min(shot.score("psnr", index) for index in range(len(shot.originals())))
    got = "No error" if reached == math.inf else f"{reached:.1f} dB"
    message = f"{got} on {shot.cell.model_name}, a target known to leak; {bar:g} dB are asked for."
    return SelfTest(cell=shot.cell.key, attack=shot.cell.attack, passed=reached >= bar, message=message)


def _identifiability(shots: Iterable[Shot], target: str) -> Mapping[str, object]:
    """What the analysis of this target found, if it was made."""
    for shot in shots:
        own = shot.cell.role is Role.IDENTIFIABILITY and shot.cell.target == target
        if own and shot.record is not None and shot.record.evidence:
            return numbers(dict(shot.record.evidence))
    return {}


def _spent(attacks: Sequence[Shot]) -> dict[str, object]:
    records = [shot.record for shot in attacks if shot.record is not None]
    return {
        "steps_spent": sum(record.steps for record in records),
        "seconds_spent": round(sum(record.seconds for record in records), 3),
        "cells_ended": sum(not shot.open for shot in attacks),
        "cells_planned": len(attacks),
    }


def _share(
    images: Sequence[ImageFinding], by_seed: Sequence[set[tuple[int, int]]], confidence: float
) -> tuple[float, tuple[float, float]]:
    """The share of images that are at least recognisable, and its interval over images and seeds.

    Images are the independent draws. The lower end takes the mean over seeds, since one lucky seed may not come again;
    the upper end counts an image that leaked under any seed, and every image of which nothing is known.
    """
    total, unknown = len(images), sum(image.level is Level.UNKNOWN for image in images)
    leaked = sum(image.level.severity >= Level.RECOGNISABLE.severity for image in images)
    mean = sum(len(found) for found in by_seed) / max(len(by_seed), 1)
    low, _ = clopper_pearson(min(mean, leaked), total, confidence)
    _, high = clopper_pearson(leaked + unknown, total, confidence)
    return (math.nan if unknown == total else leaked / total), (low, high)
