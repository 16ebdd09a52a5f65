"""The rule by which a build fails on what an audit found: one function, for every command that has ``--fail-on``."""

from __future__ import annotations

from typing import Final

from leakscope.audit.findings import Findings, Level
from leakscope.errors import UnknownName

__all__ = ["FAILED_GATE", "THRESHOLDS", "exit_code", "objections", "threshold"]

FAILED_GATE: Final = 3
"""The exit code of a command that ran well and found too much; 2 is misuse, 1 a bug."""
THRESHOLDS: Final = (Level.EXACT, Level.RECOGNISABLE, Level.TRACES)
"""What may be asked for: "nothing found" as a threshold would fail every build."""


def threshold(name: str) -> Level:
    """The level that ``--fail-on NAME`` means."""
    known = {str(level): level for level in THRESHOLDS}
    if name not in known:
        raise UnknownName("level for --fail-on", name, known)
    return known[name]


def objections(findings: Findings, fail_on: Level) -> list[str]:
    """Why a build that fails on ``fail_on`` must fail; empty if it may pass.

    Any finding at least that bad is an objection. So is whatever leaves the question open: a finding that is unknown,
    cells that have not run, an audit without findings. Silence is never taken for safety.
    """
    found = [
        f"{finding.target}, {finding.attacker}: {finding.level}"
        for finding in findings.findings
        if finding.level is Level.UNKNOWN or finding.level.severity >= fail_on.severity
    ]
    if not findings.findings:
        found.append("the audit holds no findings")
    if findings.done < findings.total:
        found.append(f"{findings.total - findings.done} of {findings.total} cells have not run")
    return found


def exit_code(findings: Findings, fail_on: Level | None) -> int:
    """3 where :func:`objections` has any, 0 otherwise and without a threshold."""
    return FAILED_GATE if fail_on is not None and objections(findings, fail_on) else 0
