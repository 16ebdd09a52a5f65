"""SPEAR: a whole batch, exactly, from the gradient of a fully connected layer with a ReLU behind it.

For B samples with inputs A (B, n) and D = ∂L/∂Z (m, B) the layer's gradients are ∂L/∂W = D A and ∂L/∂b = D 1. Of D and
A the product alone is known: with ∂L/∂W = L R of rank B (singular value decomposition) every D = L M, A = M⁻¹ R fits.
But a ReLU passes nothing back through the units that a sample switches off, so the columns of D hold many zeros, which
no mixture of them does: the sparsest basis of L's column space is D, up to the scale of each column
(:mod:`~leakscope.attacks.analytic._sparse_columns`), and the scales follow from the bias, M 1 = Lᵀ ∂L/∂b.

The batch size need not be known: it is the rank. Checked without the truth: unit r must be on for sample i
(w_r·a_i + b_r > 0) exactly where D is not zero, for all m × B of them; ∂L/∂b must lie in the column space; and each
column of D must be the one that its image gives when the client is replayed on it alone
(:mod:`~leakscope.attacks.analytic._replayed_columns`, which also settles columns that sparsity leaves open).
Equal images count once. The search is random and ends after ``samples`` starts.

Dimitrov et al., NeurIPS 2024. For one sample this is the closed form of a biased linear layer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn

from leakscope.attacks.analytic._one_image import gradient
from leakscope.attacks.analytic._replayed_columns import replay_columns
from leakscope.attacks.analytic._sparse_columns import sparse_bases
from leakscope.attacks.analytic._undo import before_layer
from leakscope.attacks.analytic.chain import Link, find_chain, refuse_random_masks
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import relative
from leakscope.random import fork
from leakscope.types import Callback, Observation, Outcome, Reconstruction, Status

__all__ = ["Spear", "spear"]

_WRONG: Final = 0.05
_BLURRED: Final = 0.1
_GAP: Final = 0.01
_DISAGREE: Final = 0.02  # units whose gradient is zero by chance, or whose input is


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spear:
    """Find the sparse columns of D; see the module. ``samples`` is the largest number of starts."""

    samples: int = 1 << 10

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        started = time.perf_counter()
        refuse_random_masks(observation)
        found = find_chain(observation.model)
        reasons: list[str] = []
        for index, link in enumerate(found.links):
            if not isinstance(link.layer, nn.Linear):
                continue
            try:
                split = self._split(observation, found.links[:index], link, fork(generator, f"spear/{link.module}"))
                return _finish(observation, found.links[:index], link, split, started)
            except NotApplicable as reason:
                reasons.append(f"'{link.module}': {reason}")
        if reasons:
            raise NotApplicable("No fully connected layer gives the batch. " + " ".join(reasons))
        last = f": {found.broken}" if found.broken else "."
        raise NotApplicable(f"No fully connected layer is reached from the pixels layer by layer{last}")

    def _split(
        self, observation: Observation, before: tuple[Link, ...], link: Link, generator: torch.Generator
    ) -> _Split:
        """D and A from their product."""
        if link.activation.name != "relu":
            raise NotApplicable(f"no ReLU follows it but {link.activation.name}: its gradient has no zeros to go by.")
        for one in before:
            if not one.activation.invertible:
                raise NotApplicable(f"the {one.activation.name} behind '{one.module}' loses what is below zero.")
        if link.bias is None:
            raise NotApplicable("it has no bias, so its gradient gives its inputs only up to scale.")
        weight = gradient(observation, link.weight, "the layer").cpu()  # (m, n)
        total = gradient(observation, link.bias, "the layer's bias").cpu()  # (m,)
        u, s, v = torch.linalg.svd(weight, full_matrices=False)
        rank = _rank(s, weight.shape, observation.input.batch_size)
        left, right = u[:, :rank], s[:rank, None] * v[:rank]
        spare = (weight.shape[0] - rank) * (weight.shape[1] - rank)
        noise = s[rank:].norm() / max(spare, 1) ** 0.5 / s[:rank]
        outside = relative(total - left @ (left.mT @ total), total)
        if outside > _WRONG:
            raise NotApplicable(
                f"{outside:.0%} of the bias gradient is not in the column space of the weight gradient: the two do not "
                "belong together, or the signal is no exact gradient."
            )
        off = gap = 1.0
        for basis in sparse_bases(left, noise, generator=generator, samples=self.samples):
            settled = 0
            while (unmixed := _unmixed(basis.directions, left.mT @ total, right)) is not None:
                mixing, inputs = unmixed
                off = _disagreement(link, inputs, basis.zero)
                again = replay_columns(observation, before, link, left, inputs, mixing)
                gap = again.gap
                if off <= _DISAGREE and gap <= _GAP:
                    return _Split(
                        inputs=inputs,
                        labels=again.labels,
                        drawn=basis.drawn,
                        settled=settled,
                        condition=float(s[0] / s[rank - 1]),
                        mixing=float(torch.linalg.cond(mixing)),
                        off=off,
                        gap=gap,
                        residual=max(outside, relative(s[rank:], s)),
                    )
                if len(again.true) <= settled:
                    break
                basis, settled = basis.replaced(left, again.true), len(again.true)
        raise NotApplicable(
            f"{self.samples} starts did not show {rank} sparse columns ('samples' allows more): the images switch "
            f"nearly the same units on, or the signal is too noisy. Last, {off:.0%} of a column's "
            f"units disagreed, and a column was {gap:.2g} off the one its image has."
        )


@register_attack(
    "spear",
    cites="dimitrov2024",
    leaky=Leaky(
        model={"name": "leakscope:mlp?hidden=200", "image_size": 16, "num_classes": 10},
        images={"from": ["bundled:cat", "bundled:coffee", "bundled:temple", "bundled:brain"], "batch_size": 4},
        psnr=60,
    ),
)
def spear(*, samples: int = 1 << 10) -> Spear:
    """Whole batches, exactly, from a fully connected layer with ReLU: low rank, sparse columns. Measured to B = 16."""
    return Spear(samples=samples)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """``inputs`` A (B, n) and ``labels`` (B,), with what was found on the way."""

    inputs: Tensor
    labels: Tensor
    drawn: int
    settled: int
    condition: float
    mixing: float
    off: float
    gap: float
    residual: float


def _rank(values: Tensor, shape: torch.Size, known: int | None) -> int:
    """The number of different images: where the singular values fall most."""
    least = max(shape) * torch.finfo(torch.float64).eps * float(values[0])
    steps = values[:-1] / values[1:].clamp_min(least)
    rank = 1 + int(steps.argmax()) if len(steps) else 1
    if not len(steps) or float(steps[rank - 1]) * _BLURRED < 1:
        raise NotApplicable(
            f"its gradient {tuple(shape)} has no clear rank: as many images as the layer is wide, or too much noise."
        )
    if known is not None and known != rank:
        more = "equal or dependent images" if rank < known else "noise, or a wrong batch size"
        raise NotApplicable(f"its gradient has rank {rank}, and the batch holds {known} images: {more}.")
    return rank


def _unmixed(directions: Tensor, side: Tensor, right: Tensor) -> tuple[Tensor, Tensor] | None:
    """M, the directions (B, B), each by the scale with which they sum to Lᵀ ∂L/∂b; and A = M⁻¹ R (B, n)."""
    scales, info = torch.linalg.solve_ex(directions, side)
    if int(info) or not bool(torch.isfinite(scales).all()) or not bool((scales != 0).all()):
        return None
    mixing = directions * scales
    inputs, info = torch.linalg.solve_ex(mixing, right)
    return None if int(info) or not bool(torch.isfinite(inputs).all()) else (mixing, inputs)


def _disagreement(link: Link, inputs: Tensor, zero: Tensor) -> float:
    """The largest share of a sample's units that are on by their input and off by their gradient, or the reverse."""
    layer = link.layer
    assert layer.bias is not None
    before = inputs @ layer.weight.detach().double().cpu().mT + layer.bias.detach().double().cpu()  # (B, m)
    return float(((before > 0) == zero.mT).double().mean(dim=1).max())


def _finish(
    observation: Observation, before: tuple[Link, ...], link: Link, split: _Split, started: float
) -> Reconstruction:
    model = observation.model
    undone = [before_layer(model, before, link, one.to(model.device)) for one in split.inputs]
    pixels = torch.stack([one.pixels for one in undone])
    images = pixels.clamp(0, 1).to(device=model.device, dtype=model.dtype)
    count = len(images)
    evidence: dict[str, object] = {
        "layer": link.module,
        "undone": [one.module for one in before],
        "rank": count,
        "condition": split.condition,
        "condition of the columns": split.mixing,
        "condition before the layer": max(one.condition for one in undone),
        "self-check": split.gap,
        "units that disagree": split.off,
        "residual": split.residual,
        "samples": split.drawn,
        "settled by replay": split.settled,
        "excess": max(one.excess for one in undone),
        "clamped": float(((pixels < -1e-3) | (pixels > 1 + 1e-3)).double().mean()),
    }
    message = f"The gradient of '{link.module}' has rank {count}; its {count} inputs follow from {split.drawn} starts."
    return Reconstruction(
        images=images,
        labels=split.labels,
        energy=max(split.gap, split.off, split.residual, *(one.check for one in undone)),
        outcome=Outcome(status=Status.FINISHED, message=message),
        seconds=time.perf_counter() - started,
        evidence=evidence,
    )
