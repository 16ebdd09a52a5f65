"""Scores: match once, then measure every image of a batch with every metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from leakscope.errors import BadInput, MissingExtra
from leakscope.functional.boxes import same_boxes
from leakscope.functional.matching import match
from leakscope.metrics.base import METRICS, Metric, image_shape
from leakscope.types import Batch, Reconstruction

__all__ = ["Scores", "score"]

# The order in which people read them; metrics of other names follow in alphabetical order.
_ORDER = ("mse", "psnr", "ssim", "ms-ssim", "lpips", "fft2d", "iip")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores(Mapping[str, Tensor]):
    """Every metric for every original: ``scores["psnr"]`` has shape (B,), in the order of the originals.

    ``assignment[i]`` is the reconstruction that was matched to original i, ``labels_correct[i]`` whether that
    reconstruction's label is the original's. ``notes`` says, for a metric that is absent or NaN throughout, why.
    ``chance`` holds what a blind guess would reach, for the metrics that know.
    """

    values_by_name: Mapping[str, Tensor]
    assignment: Tensor
    labels_correct: Tensor
    higher_is_better: Mapping[str, bool]
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    chance: Mapping[str, float] = field(default_factory=dict[str, float])
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for mapping in ("values_by_name", "higher_is_better", "notes", "chance"):
            object.__setattr__(self, mapping, MappingProxyType(dict(getattr(self, mapping))))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.values_by_name:
            why = self.notes.get(name)
            raise KeyError(f"{name}: {why}" if why else f"{name} was not computed; there are {', '.join(self)}")
        return self.values_by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values_by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    # Mapping would compare tensors with ==, which has no truth value; two results are one only if they are the same.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def batch_size(self) -> int:
        return len(self.assignment)

    def table(self) -> str:
        """Plain text: a row per original, then the best, the worst and the mean over images, metric by metric.

        Best is best for the attacker: the most exposed image, whichever way the metric points. ↑ marks metrics where
        more is closer to the original, ↓ those where less is. Images without a value are left out of the summary rows.
        """
        head = ["image", "label", *(f"{name} {'↑' if self.higher_is_better[name] else '↓'}" for name in self)]
        names = self.names or tuple(str(index) for index in range(self.batch_size))
        rows = [
            [name, "right" if right else "wrong", *(_cell(float(self[metric][index])) for metric in self)]
            for index, (name, right) in enumerate(zip(names, self.labels_correct.tolist(), strict=True))
        ]
        share = f"{int(self.labels_correct.sum())}/{self.batch_size}"
        summary = [
            ["best", "", *(_cell(self._extreme(name, best=True)) for name in self)],
            ["worst", "", *(_cell(self._extreme(name, best=False)) for name in self)],
            ["mean", share, *(_cell(_mean(self[name])) for name in self)],
        ]
        if self.chance:
            summary.append(["chance", "", *(_cell(self.chance[n]) if n in self.chance else "" for n in self)])
        widths = [max(len(row[column]) for row in [head, *rows, *summary]) for column in range(len(head))]
        rule = "  ".join("─" * width for width in widths)
        lines = [_line(head, widths), rule, *(_line(row, widths) for row in rows), rule]
        lines += [_line(row, widths) for row in summary]
        lines += [f"{name}: {why}." for name, why in self.notes.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Plain lists and numbers for a record; JSON has no infinity or NaN, so those are "inf", "-inf" and "nan"."""
        return {
            "images": list(self.names),
            "metrics": {name: [_plain(value) for value in self[name].tolist()] for name in self},
            "assignment": self.assignment.tolist(),
            "labels_correct": self.labels_correct.tolist(),
            "higher_is_better": dict(self.higher_is_better),
            "chance": dict(self.chance),
            "notes": dict(self.notes),
        }

    def _extreme(self, name: str, *, best: bool) -> float:
        known = [value for value in self[name].tolist() if not math.isnan(value)]
        pick = max if best == self.higher_is_better[name] else min
        return pick(known, default=math.nan)


def score(reconstruction: Reconstruction, truth: Batch, metrics: Sequence[str] | None = None) -> Scores:
    """Match reconstructions to originals once, then run every metric on the matched pairs, image by image.

    Args:
        reconstruction: what an attack brought back; its images must have the shape of the originals. There may be more
            of them, where others' images were in the same update: each original gets the one nearest to it.
        truth: the client's batch.
        metrics: names of metrics. By default all that are defined for these images and installed; what is left out is
            listed in ``notes`` with the reason. A metric that is asked for by name is never left out: its values are
            NaN, with a note, where it is not defined, and a missing dependency is an error.
    """
    images, originals = reconstruction.images, truth.images
    if images.shape[1:] != originals.shape[1:] or len(images) < len(originals):
        raise BadInput(
            f"The reconstruction has images {tuple(images.shape)}, the truth {tuple(originals.shape)}; scoring needs "
            "at least as many reconstructions as originals, of the same channels and size."
        )
    labels = reconstruction.labels
    if labels.ndim == 2:  # probabilities, (B, K)
        labels = labels.argmax(1)
    if labels.ndim not in (1, truth.labels.ndim) or labels.shape[:1] != images.shape[:1]:
        raise BadInput(f"The reconstruction has labels {tuple(labels.shape)} for {len(images)} images.")
    assignment = match(images, originals)
    matched = images.detach().cpu()[assignment]
    shape = image_shape(originals)

    values: dict[str, Tensor] = {}
    notes: dict[str, str] = {}
    used: dict[str, Metric] = {}
    for name in _default_names() if metrics is None else _asked(metrics):
        one = METRICS[name].value
        why = one.reason_undefined(shape)
        if why:
            notes[name] = why
        if why and metrics is None:
            continue
        try:
            values[name] = _per_image(one, matched, originals)
        except MissingExtra as error:
            if metrics is not None:
                raise
            notes[name] = str(error).rstrip(".")
            continue
        used[name] = one
    return Scores(
        values_by_name=values,
        assignment=assignment,
        labels_correct=_same(labels.detach().cpu()[assignment], truth.labels.cpu()),
        higher_is_better={name: one.higher_is_better for name, one in used.items()},
        notes=notes,
        chance={name: one.chance(originals) for name, one in used.items() if one.chance},
        names=truth.names,
    )


def _same(labels: Tensor, truth: Tensor) -> Tensor:
    """Image by image; an attack that needs no labels says nothing about boxes."""
    if truth.ndim == 3:
        return same_boxes(labels, truth) if labels.ndim == 3 else torch.zeros(len(truth), dtype=torch.bool)
    return labels == truth


def _default_names() -> list[str]:
    return [name for name in _ORDER if name in METRICS] + [name for name in METRICS if name not in _ORDER]


def _asked(metrics: Sequence[str]) -> list[str]:
    if isinstance(metrics, str):
        raise BadInput(f"Give the metrics as a list, for instance [{metrics!r}]; got the string {metrics!r}.")
    return list(dict.fromkeys(metrics))


def _per_image(one: Metric, matched: Tensor, originals: Tensor) -> Tensor:
    values = one(matched, originals).detach().cpu()
    if values.shape != (len(originals),):
        raise BadInput(
            f"The metric '{one.name}' returned {tuple(values.shape)} for {len(originals)} images; it must return one "
            "number per image."
        )
    return values.to(torch.float64)


def _mean(values: Tensor) -> float:
    return float(values.nanmean())


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _cell(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.2e}" if abs(value) < 1e-3 else f"{value:.4g}"


def _line(cells: list[str], widths: list[int]) -> str:
    """Names to the left, numbers to the right."""
    sides = [str.ljust] * 2 + [str.rjust] * (len(cells) - 2)
    return "  ".join(side(cell, width) for side, cell, width in zip(sides, cells, widths, strict=True)).rstrip()
