"""Findings as the page shows them: pictures, numbers and sentences, ready for the template."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from leakscope.audit.findings import Finding, ImageFinding, Level
from leakscope.report import figures
from leakscope.report.album import Album, Shot
from leakscope.report.caption import number
from leakscope.report.load import Audit

__all__ = ["FindingView", "Pair", "finding_views", "knowledge", "ladder", "main_metric", "shown_name", "worst_pairs"]

_METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "psnr": ("PSNR", " dB"),
    "ssim": ("SSIM", ""),
    "ms-ssim": ("MS-SSIM", ""),
    "lpips": ("LPIPS", ""),
    "mse": ("MSE", ""),
    "fft2d": ("FFT2D", ""),
    "iip": ("IIP", ""),
}
_MOST_ROWS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One image: what went in, what came back, and what comes back without any leak."""

    finding: Finding
    image: ImageFinding
    original: Shot
    reconstruction: Shot
    control: Shot | None
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """A verdict with its anchor, the attacker's knowledge, the bar of its leaked share, and its figures."""

    anchor: str
    finding: Finding
    knows: str
    share: str
    bar: Markup
    comparison: Markup
    spectrum: Markup
    analysis: tuple[str, list[tuple[str, str]]]
    metrics: tuple[str, ...]
    rows: list[tuple[ImageFinding, list[str]]]


def worst_pairs(audit: Audit, album: Album, *, most: int = 12, each: int = 3, side: int = 448) -> list[Pair]:
    """The images that came back best, over all findings; no finding takes more than ``each`` of the
    places, and one that found nothing takes one."""
    controls = audit.controls()
    ranked: list[tuple[int, int, int, Finding, ImageFinding]] = []
    for place, finding in enumerate(audit.findings.findings):
        for rank, image in enumerate(finding.images[: each if finding.level.severity > Level.NOTHING.severity else 1]):
            ranked.append((-image.level.severity, rank, place, finding, image))
    ranked.sort(key=lambda entry: entry[:3])
    pairs: list[Pair] = []
    for *_, finding, image in ranked:
        record = audit.records.get(image.cell)
        if record is None or not 0 <= image.index < len(record.pictures) or len(pairs) >= most:
            continue
        picture = record.pictures[image.index]
        control = controls.get(image.cell, "")
        beside = audit.records.get(control)
        pairs.append(
            Pair(
                finding=finding,
                image=image,
                original=album.original(image.cell, picture, side=side),
                reconstruction=album.reconstruction(image.cell, picture, side=side, level=image.level),
                control=album.reconstruction(control, beside.pictures[image.index], side=96)
                if beside is not None and image.index < len(beside.pictures)
                else None,
                facts=_facts(image),
            )
        )
    return pairs


def finding_views(audit: Audit) -> list[FindingView]:
    """Every verdict, in the order of the findings: worst first."""
    return [_finding_view(audit, finding, place) for place, finding in enumerate(audit.findings.findings)]


def knowledge(audit: Audit, finding: Finding) -> str:
    """What the finding's attacker knows besides the update: ``batch size, labels``."""
    known = {name for cell in audit.cells_of(finding).values() for name in cell.knows}
    return ", ".join(sorted(known))


def ladder(audit: Audit) -> tuple[list[str], list[tuple[str, list[FindingView | None]]]]:
    """Attackers, those who know least first, and the verdict of every target under each of them."""
    views = finding_views(audit)
    steps: dict[str, tuple[int, int]] = {}
    for view in views:
        size = len(view.knows.split(", ")) if view.knows else 0
        steps.setdefault(view.finding.attacker, (size, len(steps)))
    attackers = sorted(steps, key=lambda name: steps[name])
    targets: dict[str, dict[str, FindingView]] = {}
    for view in views:
        targets.setdefault(view.finding.target, {})[view.finding.attacker] = view
    return attackers, [(target, [by.get(name) for name in attackers]) for target, by in targets.items()]


def main_metric(names: Collection[str]) -> str:
    """The metric that figures show: SSIM where it was computed."""
    return next((name for name in ("ssim", "psnr", *names) if name in names), "")


def shown_name(metric: str) -> str:
    """``SSIM`` for ``ssim``."""
    return _METRICS.get(metric, (metric, ""))[0]


def _finding_view(audit: Audit, finding: Finding, place: int) -> FindingView:
    names = [name for name in _METRICS if any(name in image.scores for image in finding.images)]
    names += sorted({name for image in finding.images for name in image.scores} - set(names))
    main = main_metric(names)
    rows = [
        (image.name, image.scores[main], image.control.get(main), image.level)
        for image in finding.images
        if main in image.scores
    ]
    values, words, rest = _identifiability(finding.evidence.identifiability)
    low, high = finding.interval
    known = finding.level is not Level.UNKNOWN and math.isfinite(finding.leaked)
    return FindingView(
        anchor=f"finding-{place + 1}",
        finding=finding,
        knows=knowledge(audit, finding),
        share=f"{finding.leaked:.0%} of images ({low:.0%} to {high:.0%})" if known else "",
        bar=figures.interval(finding.leaked, finding.interval, finding.level),
        comparison=figures.comparison(rows, shown_name(main)),
        spectrum=figures.spectrum(values),
        analysis=(words, rest),
        metrics=tuple(names),
        rows=[(image, [_beside(image, name) for name in names]) for image in finding.images[:_MOST_ROWS]],
    )


def _identifiability(found: Mapping[str, object]) -> tuple[list[float], str, list[tuple[str, str]]]:
    """Singular values, the sentence, and whatever else is a number or a word."""
    raw: Any = found.get("singular_values", ())
    values = [float(value) for value in raw] if isinstance(raw, list | tuple) else []
    rest = [
        (key.replace("_", " "), number(value) if isinstance(value, float) else str(value))
        for key, value in found.items()
        if key not in ("singular_values", "summary") and isinstance(value, str | int | float) and value != ""
    ]
    return values, str(found.get("summary", "")), rest


def _facts(image: ImageFinding) -> tuple[str, ...]:
    facts: list[str] = []
    for name in ("psnr", "ssim", "lpips"):
        if name in image.scores and not math.isnan(image.scores[name]):
            shown, unit = _METRICS[name]
            control = image.control.get(name, math.nan)
            without = "" if math.isnan(control) else f", control {number(control)}"
            facts.append(f"{shown} {number(image.scores[name])}{unit}{without}")
    if image.rank is not None and image.gallery:
        place = "picked out first" if image.rank == 1 else f"ranked {image.rank}"
        chance = "" if image.p_value is None else f", p = {number(image.p_value, '.2g')}"
        facts.append(f"{place} of {image.gallery} pictures{chance}")
    return tuple(facts)


def _beside(image: ImageFinding, name: str) -> str:
    """A score, and its control's in brackets."""
    if name not in image.scores:
        return ""
    control = f" ({number(image.control[name])})" if name in image.control else ""
    return number(image.scores[name]) + control
