"""Tables of scores for the terminal, from records."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from leakscope.audit.record import Record

__all__ = ["cell", "score_table"]


def score_table(record: Record) -> Table:
    """A row per image: whether its label came back, and every metric; then the mean, where there are several images.

    Last, what a blind guess would reach, for the metrics that know it (identification).
    """
    better: dict[str, bool] = record.scores["higher_is_better"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("image", no_wrap=True)
    table.add_column("label", no_wrap=True)
    for name in better:
        table.add_column(f"{name} {'↑' if better[name] else '↓'}", justify="right", no_wrap=True)
    values = {name: record.metric(name) or [] for name in better}
    for index, picture in enumerate(record.pictures):
        right = picture.label == picture.recovered_label
        label = Text(str(picture.label)) if right else Text(f"{picture.label} ≠ {picture.recovered_label}", style="dim")
        table.add_row(Text(picture.name), label, *(cell(values[name][index]) for name in better))
    if len(record.pictures) > 1:
        correct = sum(p.label == p.recovered_label for p in record.pictures)
        means = [[value for value in values[name] if not math.isnan(value)] for name in better]
        table.add_row(
            "mean",
            f"{correct}/{len(record.pictures)}",
            *(cell(sum(known) / len(known)) if known else "" for known in means),
            style="dim",
        )
    chance: dict[str, float] = record.scores.get("chance", {})
    if chance:
        table.add_row("chance", "", *(cell(chance[name]) if name in chance else "" for name in better), style="dim")
    return table


def cell(value: float) -> str:
    """A number that fits a column."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.3g}"
