"""Patterns that somebody has to write into a layer: detectors, one function each, on one layer at a time.

They cite what they look for: imprint layers (Fowl et al. 2022, "Robbing the Fed"), trap weights (Boenisch et al. 2023,
"When the curious abandon honesty"), fishing heads (Wen et al. 2022, "Fishing for user data").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from leakscope.lint.finding import Finding, Weights

__all__ = ["DETECTORS"]

_NARROW: Final = 8
"""A fan-in below this says nothing: rows of so few weights are alike by chance."""
_PARALLEL: Final = 1 - 1e-4
_COMPARED: Final = 1024
"""Rows of a wide layer that are looked at, evenly spread."""
_IMPRINT: Final = "One update would hold single images almost unmixed in the differences between neighbouring units."


def parallel_rows(layer: Weights) -> Iterator[Finding]:
    """Imprint (binning) layers: units that measure one and the same thing, told apart by their biases only."""
    rows, index = _nonzero(layer.rows)
    if layer.classifier or rows.shape[1] < _NARROW or len(rows) < 4:
        return
    alike = _alike(rows)
    sizes = alike.sum(1)
    most = int(sizes.max())
    if most < max(4, math.ceil(0.02 * len(rows))):
        return
    members = alike[int(sizes.argmax())]
    evidence = f"{most} of {len(rows)} rows are one direction up to scale"
    if layer.bias is not None:
        # Per unit of scale: that is where the unit switches on.
        offsets = layer.bias[index][members] / rows[members].norm(dim=1)
        distinct = len(offsets.unique())
        evidence += f", with {distinct} different biases" if distinct > 1 else ", with equal biases"
    yield Finding(
        parameter=layer.name, kind="imprint layer", allows=_IMPRINT, evidence=evidence + ".", confidence="high"
    )


def constant_rows(layer: Weights) -> Iterator[Finding]:
    """Rows that only take the mean of their input, as a measurement for binning does."""
    rows, _ = _nonzero(layer.rows)
    if rows.shape[1] < _NARROW or not len(rows):
        return
    flat = (rows.std(dim=1) <= 1e-4 * rows.abs().mean(dim=1)).sum()
    if int(flat) >= 1 and int(flat) < 4:  # more of them are found as parallel rows
        yield Finding(
            parameter=layer.name,
            kind="constant rows",
            allows="Such a unit measures the brightness of its whole input, on which images can be sorted.",
            evidence=f"{int(flat)} of {len(layer.rows)} rows hold one number throughout.",
            confidence="medium",
        )


def copies(layer: Weights) -> Iterator[Finding]:
    """Identity-like layers: units that hand single inputs on as they are."""
    rows, _ = _nonzero(layer.rows)
    # Depthwise windows with one strong tap come about by training, so those need to be exact.
    if rows.shape[1] < _NARROW or len(rows) < 4 or layer.classifier or layer.starts_as_identity:
        return
    energy = rows.square()
    share, place = (energy / energy.sum(1, keepdim=True)).max(dim=1)
    clean = share >= (1 - 1e-12 if rows.shape[1] == layer.kernel else 0.999)
    if int(clean.sum()) < max(4, len(rows) // 4):
        return
    distinct = len(place[clean].unique())
    if rows.shape[1] != layer.kernel and distinct < 2:
        return
    yield Finding(
        parameter=layer.name,
        kind="identity-like layer",
        allows="Pixels or features pass unchanged to a deeper layer, whose gradient then gives them away.",
        evidence=f"{int(clean.sum())} of {len(rows)} rows pass on one input each, {distinct} different ones.",
        confidence="high",
    )


def near_identity(layer: Weights) -> Iterator[Finding]:
    """The same with a little noise on top: a square layer whose diagonal stands out."""
    if layer.starts_as_identity or not layer.square or layer.rows.shape[1] // layer.kernel < _NARROW:
        return
    units = len(layer.rows)
    taps = layer.rows.reshape(units, units, layer.kernel)[:, :, layer.kernel // 2]  # (out, in)
    diagonal, rest = taps.diagonal(), layer.rows.square().sum() - taps.diagonal().square().sum()
    share = float(diagonal.square().sum() / layer.rows.square().sum().clamp(min=1e-300))
    usual = 1 / layer.rows.shape[1]
    same_sign = float((diagonal > 0).double().mean())
    if share > 0.5 and share > 50 * usual and (same_sign > 0.95 or same_sign < 0.05) and float(rest) > 0:
        yield Finding(
            parameter=layer.name,
            kind="identity-like layer",
            allows="Features pass nearly unchanged to a deeper layer, whose gradient then gives them away.",
            evidence=f"Its diagonal holds {share:.0%} of its energy; {usual:.1%} would be usual.",
            confidence="medium",
        )


def trap_weights(layer: Weights) -> Iterator[Finding]:
    """Trap weights: half of every row negative and a little larger, so that a unit fires for few images."""
    rows, _ = _nonzero(layer.rows)
    count, wide = rows.shape
    if wide < 16 or count < 8:
        return
    negative = (rows < 0).sum(1)
    balanced = (negative - wide / 2).abs() <= 0.5
    down = (rows.sum(1) < 0) & balanced
    share = float(down.double().mean())
    # A random row is split evenly with probability ≈ √(2/πn) at most, and then leans down half of the time.
    chance = math.sqrt(2 / (math.pi * wide)) * (2 if wide % 2 else 1)
    if share < 0.9 or count * math.log10(max(chance, 1e-12)) * share > -6:
        return
    positive, below = rows.clamp(min=0).sum(1)[down], -rows.clamp(max=0).sum(1)[down]
    yield Finding(
        parameter=layer.name,
        kind="trap weights",
        allows="Units fire for single images of a batch, and their gradient rows are then those images, unmixed.",
        evidence=f"{share:.0%} of its rows have exactly half of their weights negative, the positive ones scaled by "
        f"{float((positive / below).median()):.2f}.",
        confidence="high",
    )


def fishing_head(layer: Weights) -> Iterator[Finding]:
    """A classifier made to single out a class or a feature: copied or blank rows, one column, saturating biases."""
    if not layer.classifier or len(layer.rows) < 3:
        return
    rows, _ = _nonzero(layer.rows)
    allows = "The gradient of one image, or of one class, drowns out the others and can be inverted as if alone."
    evidence: list[str] = []
    blank = int((layer.rows.abs().amax(1) == 0).sum())
    if 2 <= blank < len(layer.rows):
        evidence.append(f"{blank} of {len(layer.rows)} rows are zero, the others not.")
    if len(rows) > 2 and rows.shape[1] >= _NARROW:
        same = _alike(rows).sum(1) > 1
        if int(same.sum()) >= 2:
            evidence.append(f"{int(same.sum())} rows are copies of each other up to scale.")
    columns = layer.rows.square().sum(0)
    if len(columns) >= _NARROW and float(columns.max()) > 0.9 * float(columns.sum()) > 0:
        evidence.append("A single feature decides: its column holds over 90 % of the weights' energy.")
    if layer.bias is not None:
        spread = float(layer.bias.max() - layer.bias.min())
        if spread > 50:
            evidence.append(f"The biases are {spread:.0f} apart, which fixes the answer whatever the image.")
    norms = rows.norm(dim=1)
    if len(norms) >= 3 and float(norms.max()) > 100 * float(norms.median()):
        evidence.append(f"One row is {float(norms.max() / norms.median()):.0f} times as large as is usual in it.")
    for text in evidence:
        yield Finding(parameter=layer.name, kind="fishing classifier", allows=allows, evidence=text, confidence="high")


def loud_rows(layer: Weights) -> Iterator[Finding]:
    """A few units far louder than the rest of their layer."""
    rows, _ = _nonzero(layer.rows)
    if layer.classifier or len(rows) < 16:
        return
    norms = rows.norm(dim=1)
    high = float(norms.quantile(0.9))
    loud = int((norms > 100 * high).sum())
    if loud:
        yield Finding(
            parameter=layer.name,
            kind="out-of-family rows",
            allows="Their gradients stand out of the sum over the batch.",
            evidence=f"{loud} of {len(rows)} rows are over 100 times as large as nine tenths of the others.",
            confidence="medium",
        )


def _alike(rows: Tensor) -> Tensor:
    """Which rows are parallel, (n, n)."""
    directions = (rows / rows.norm(dim=1, keepdim=True)).float()
    return (directions @ directions.T).abs() >= _PARALLEL


def _nonzero(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are not zero, at most a thousand or so, and their indices."""
    index = rows.abs().amax(1).nonzero().flatten() if rows.shape[1] else torch.empty(0, dtype=torch.long)
    if len(index) > _COMPARED:
        index = index[torch.linspace(0, len(index) - 1, _COMPARED).long()]
    return rows[index], index


Detector = Callable[[Weights], Iterator[Finding]]
DETECTORS: Final[tuple[Detector, ...]] = (
    parallel_rows, constant_rows, copies, near_identity, trap_weights, fishing_head, loud_rows,
)  # fmt: skip
