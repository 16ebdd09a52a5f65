"""Studies: one question asked at many points, answered by a table and a figure.

A study is a function that yields points; each is a case like any other, run into a folder of its own, so that a study
that was broken off goes on where it was. Adding one is adding a file to ``audit/studies``.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from leakscope.attacks.configure import configured
from leakscope.audit.record import FAILED, REFUSED, Record
from leakscope.audit.run import Case, invert
from leakscope.audit.store import ensure_writable, replacing
from leakscope.audit.study_models import Beside
from leakscope.audit.study_rows import Row, write_rows
from leakscope.errors import BadInput, NotApplicable
from leakscope.models import VisionModel
from leakscope.registry import Registry
from leakscope.types import Batch, Callback, ClientProtocol, Status, ThreatModel

__all__ = [
    "CONCLUSIONS",
    "STUDIES",
    "Conclusion",
    "Point",
    "Setup",
    "Study",
    "conclusions",
    "register_study",
    "run_study",
]

CONCLUSIONS: Final = "conclusions.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a study varies: a model, a private batch, a client, a server and an attack.

    ``public``: images that the server has, for attacks that are fitted; its threat must say that it has some.
    ``weights`` is the file that the model's came from, ``beside`` what studies of several models compare it with.
    """

    model: VisionModel
    batch: Batch
    client: ClientProtocol
    threat: ThreatModel
    attack: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    public: Batch | None = None
    weights: Path | None = None
    beside: tuple[Beside, ...] = ()
    seed: int = 0

    def case(self, **changes: Any) -> Case:
        """The case at the centre of the study, with ``changes``."""
        case = Case(
            model=self.model,
            batch=self.batch,
            client=self.client,
            threat=self.threat,
            attack_name=self.attack,
            attack=configured(self.attack, self.options),
            public=self.public,
            seed=self.seed,
        )
        return replace(case, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where on the axes, and the case there.

    ``extra`` are further columns that are known without an attack, ``after`` gives those that follow from its record,
    which lies in the folder beside what came back. ``run`` tells points at the same place apart.
    """

    at: Mapping[str, str | float]
    case: Case
    run: str = ""
    extra: Mapping[str, str | float] = field(default_factory=dict[str, str | float])
    after: Callable[[Case, Record, Path], Mapping[str, str | float]] | None = None

    @property
    def slug(self) -> str:
        """A folder name that a person can read."""
        text = "_".join([f"{key}-{value}" for key, value in self.at.items()] + [self.run] * bool(self.run))
        return re.sub(r"[^\w.=-]+", "-", text).strip("-")[:120]


Maker = Callable[[Setup], Iterable[Point]]
Conclusion = Mapping[str, str | float]
"""One line of what a study comes to: columns by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study: its points, what its figure shows along x and as lines, and which metric.

    ``ordered``: names along x have an order, and are joined by a line, with an image as it came back at each of them
    underneath. ``conclude`` makes a short table of all rows and the folder that holds their records. ``costly``: how
    long it will take is measured, and said, before it starts. ``several``: it takes models to stand beside the first.
    """

    name: str
    make: Maker
    x: str
    series: str | None
    metric: str
    ordered: bool = False
    conclude: Callable[[Sequence[Row], Path], list[Conclusion]] | None = None
    costly: bool = False
    several: bool = False


STUDIES: Final[Registry[Study]] = Registry("study", "leakscope.audit.studies")


def register_study(
    name: str,
    *,
    x: str,
    series: str | None = None,
    metric: str = "psnr",
    ordered: bool = False,
    cites: str | None = None,
    conclude: Callable[[Sequence[Row], Path], list[Conclusion]] | None = None,
    costly: bool = False,
    several: bool = False,
) -> Callable[[Maker], Maker]:
    """Decorator: enter a function that yields points under ``name``; its docstring's first line is shown to users."""

    def enter(make: Maker) -> Maker:
        study = Study(
            name=name,
            make=make,
            x=x,
            series=series,
            metric=metric,
            ordered=ordered,
            conclude=conclude,
            costly=costly,
            several=several,
        )
        STUDIES.add(name, study, cites=cites, summary=(make.__doc__ or "").strip().partition("\n")[0])
        return make

    return enter


def run_study(
    study: Study,
    setup: Setup,
    out: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    told: Callable[[Point], None] = lambda point: None,
    callback: Callback | None = None,
) -> list[Row]:
    """Run every point into ``out`` and write the table; ends early, with fewer rows, when ``stop`` says so."""
    if setup.beside and not study.several:
        raise BadInput(f"The study '{study.name}' is of one model; there is nothing to stand beside it.")
    ensure_writable(out)
    rows: list[Row] = []
    for point in study.make(setup):
        if stop():
            break
        told(point)
        try:
            row = _run(point, out, callback)
        except KeyboardInterrupt:  # in the middle of a fit, which has no state to keep
            if stop():
                break
            raise
        if row.status == Status.INTERRUPTED:
            break
        rows.append(row)
        write_rows(
            setup,
            rows,
            out,
            study=study.name,
            x=study.x,
            series=study.series,
            metric=study.metric,
            ordered=study.ordered,
        )
    return rows


def conclusions(study: Study, rows: Sequence[Row], out: Path) -> list[Conclusion]:
    """What the study comes to, written to ``conclusions.csv``; nothing for a study whose table says it all."""
    if study.conclude is None or not rows:
        return []
    found = study.conclude(rows, out)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for line in found for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    with replacing(out / CONCLUSIONS) as part:
        part.write_text(text.getvalue(), encoding="utf-8")
    return found


def _run(point: Point, out: Path, callback: Callback | None) -> Row:
    folder = out / "points" / point.slug
    try:
        record = invert(point.case, folder, callback=callback).record
    except NotApplicable as refusal:
        return _row(point, folder, REFUSED, str(refusal), {}, {})
    row = _row(point, folder, record.status, record.message, *_summary(record))
    if point.after is None or not record.pictures:
        return row
    return replace(row, extra={**row.extra, **point.after(point.case, record, folder)})


def _summary(record: Record) -> tuple[dict[str, float], dict[str, float]]:
    if record.status == FAILED:
        return {}, {}
    higher = record.scores["higher_is_better"]
    values = {name: record.metric(name) or [] for name in record.scores["metrics"]}
    kept = {name: [v for v in row if not math.isnan(v)] for name, row in values.items()}
    means = {name: sum(row) / len(row) for name, row in kept.items() if row}
    best = {name: (max if higher[name] else min)(row) for name, row in kept.items() if row}
    return means, best


def _row(
    point: Point, folder: Path, status: str, message: str, metrics: dict[str, float], best: dict[str, float]
) -> Row:
    return Row(
        at=point.at,
        status=status,
        message=message,
        metrics=metrics,
        best=best,
        extra=point.extra,
        folder=f"points/{folder.name}",
    )
