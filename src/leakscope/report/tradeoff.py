"""Defences against each other: how much each lets out, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from leakscope.audit.campaign import NO_DEFENCE
from leakscope.audit.findings import Finding
from leakscope.report import figures
from leakscope.report.costs import COSTS, Cost, cost_of
from leakscope.report.load import Audit

__all__ = ["Tradeoff", "tradeoffs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """One model, images, client and attacker under several defences. ``figure`` is empty where no cost was measured."""

    title: str
    rows: tuple[tuple[Finding, Cost | None], ...]
    figure: Markup
    measure: str


def tradeoffs(audit: Audit) -> list[Tradeoff]:
    """Every group of set-ups that differ in their defence alone."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in audit.findings.findings:
        key = (finding.model, finding.images_name, finding.client, finding.attacker)
        groups.setdefault(key, []).append(finding)
    return [_tradeoff(audit, key, group) for key, group in groups.items() if len(group) > 1]


def _tradeoff(audit: Audit, key: tuple[str, ...], group: list[Finding]) -> Tradeoff:
    rows = tuple((finding, cost_of(audit, finding)) for finding in group)
    # No defence costs nothing, whether or not that was measured.
    shared = [name for name in COSTS if all(name in _values(f, cost) for f, cost in rows)]
    measure = shared[0] if shared else ""
    points = [
        figures.Point(
            name=finding.defence,
            cost=_values(finding, cost)[measure],
            leaked=finding.leaked,
            interval=finding.interval,
            level=finding.level,
        )
        for finding, cost in rows
        if measure
    ]
    return Tradeoff(
        title=" · ".join(key),
        rows=rows,
        figure=figures.pareto(points, COSTS[measure]) if measure else Markup(""),
        measure=COSTS.get(measure, ""),
    )


def _values(finding: Finding, cost: Cost | None) -> dict[str, float]:
    known = {name: float(name == "bytes") for name in COSTS} if finding.defence == NO_DEFENCE else {}
    return known | dict(cost.values if cost is not None else {})
