"""SPEAR: a whole batch, exactly, from the gradient of a fully connected layer with a ReLU behind it.

For B samples with inputs A (B, n) and D = ∂L/∂Z (m, B) the layer's gradients are ∂L/∂W = D A and ∂L/∂b = D 1. Of D and
A the product alone is known: with ∂L/∂W = L R of rank B (singular value decomposition) every D = L M, A = M⁻¹ R fits.
But a ReLU passes nothing back through the units that a sample switches off, so the columns of D hold many zeros, which
no mixture of them does: the sparsest basis of L's column space is D, up to the scale of each column
(:mod:`~leakscope.attacks.analytic._sparse_columns`), and the scales follow from the bias, M 1 = Lᵀ ∂L/∂b.

The batch size need not be known: it is the rank. Checked without the truth: unit r must be on for sample i
(w_r·a_i + b_r > 0) exactly where D is not zero, for all m × B of them; and ∂L/∂b must lie in the column space.
Equal images count once. The search is random and ends after ``samples`` draws: about 2^(B−1) are needed.

Dimitrov et al., NeurIPS 2024. For one sample this is the closed form of a biased linear layer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn

from leakscope.attacks.analytic._one_image import UNKNOWN_LABEL, gradient
from leakscope.attacks.analytic._sparse_columns import SparseBasis, sparse_bases
from leakscope.attacks.analytic._undo import before_layer
from leakscope.attacks.analytic.chain import Link, find_chain, refuse_random_masks
from leakscope.attacks.registry import register_attack
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import relative
from leakscope.random import fork
from leakscope.types import Callback, Observation, Outcome, Reconstruction, Status

__all__ = ["Spear", "spear"]

_WRONG: Final = 0.05
_BLURRED: Final = 0.1
_DISAGREE: Final = 0.02  # units whose gradient is zero by chance, or whose input is
_ALIKE: Final = 0.99
_HOPELESS: Final = 64


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Spear:
    """Find the sparse columns of D; see the module. ``samples`` is the largest number of draws."""

    samples: int = 1 << 20

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
                split = self._split(observation, link, fork(generator, f"spear/{link.module}"))
                return _finish(observation, found.links[:index], link, split, started)
            except NotApplicable as reason:
                reasons.append(f"'{link.module}': {reason}")
        if reasons:
            raise NotApplicable("No fully connected layer gives the batch. " + " ".join(reasons))
        last = f": {found.broken}" if found.broken else "."
        raise NotApplicable(f"No fully connected layer is reached from the pixels layer by layer{last}")

    def _split(self, observation: Observation, link: Link, generator: torch.Generator) -> _Split:
        """D and A from their product."""
        if link.activation.name != "relu":
            raise NotApplicable(f"no ReLU follows it but {link.activation.name}: its gradient has no zeros to go by.")
        if link.bias is None:
            raise NotApplicable("it has no bias, so its gradient gives its inputs only up to scale.")
        weight = gradient(observation, link.weight, "the layer").cpu()  # (m, n)
        total = gradient(observation, link.bias, "the layer's bias").cpu()  # (m,)
        u, s, v = torch.linalg.svd(weight, full_matrices=False)
        rank = _rank(s, weight.shape, observation.input.batch_size)
        if self.samples * _HOPELESS < 2 ** (rank - 1):
            raise NotApplicable(
                f"{rank} images need about 2^{rank - 1} draws, and {self.samples} are allowed ('samples')."
            )
        left, right = u[:, :rank], s[:rank, None] * v[:rank]
        spare = (weight.shape[0] - rank) * (weight.shape[1] - rank)
        noise = s[rank:].norm() / max(spare, 1) ** 0.5 / s[:rank]
        outside = relative(total - left @ (left.mT @ total), total)
        if outside > _WRONG:
            raise NotApplicable(
                f"{outside:.0%} of the bias gradient is not in the column space of the weight gradient: the two do not "
                "belong together, or the signal is no exact gradient."
            )
        off, drawn = 1.0, 0
        for basis in sparse_bases(left, noise, generator=generator, samples=self.samples):
            mixing = _scaled(basis, left.mT @ total)
            if mixing is None:
                continue
            inputs, drawn = torch.linalg.solve(mixing, right), basis.drawn  # (B, n)
            off = _disagreement(link, inputs, basis.zero)
            if off <= _DISAGREE:
                return _Split(
                    inputs=inputs,
                    deltas=left @ mixing,
                    drawn=drawn,
                    condition=float(s[0] / s[rank - 1]),
                    mixing=float(torch.linalg.cond(mixing)),
                    check=off,
                    residual=max(outside, relative(s[rank:], s)),
                )
        raise NotApplicable(
            f"{self.samples} draws did not show {rank} sparse columns ('samples' allows more): the images switch "
            f"nearly the same units on, or the signal is too noisy. Last, {off:.0%} of a column's units disagreed."
        )


@register_attack("spear", cites="dimitrov2024")
def spear(*, samples: int = 1 << 20) -> Spear:
    """Whole batches, exactly, from a fully connected layer with ReLU: low rank, sparse columns. Measured to B = 8."""
    return Spear(samples=samples)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """``inputs`` A (B, n) and ``deltas`` D (m, B), with what was found on the way."""

    inputs: Tensor
    deltas: Tensor
    drawn: int
    condition: float
    mixing: float
    check: float
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


def _scaled(basis: SparseBasis, side: Tensor) -> Tensor | None:
    """M: the directions (B, B), each by the scale with which they sum to Lᵀ ∂L/∂b."""
    scales, info = torch.linalg.solve_ex(basis.directions, side)
    good = int(info) == 0 and bool(torch.isfinite(scales).all()) and bool((scales != 0).all())
    return basis.directions * scales if good else None


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
    labels = _labels(observation, link, images, split.deltas)
    count = len(images)
    evidence: dict[str, object] = {
        "layer": link.module,
        "undone": [one.module for one in before],
        "rank": count,
        "condition": split.condition,
        "condition of the columns": split.mixing,
        "condition before the layer": max(one.condition for one in undone),
        "self-check": split.check,
        "residual": split.residual,
        "samples": split.drawn,
        "excess": max(one.excess for one in undone),
        "clamped": float(((pixels < -1e-3) | (pixels > 1 + 1e-3)).double().mean()),
        "labels": f"{int((labels >= 0).sum())} of {count} found",
    }
    message = f"The gradient of '{link.module}' has rank {count}; its {count} inputs follow from {split.drawn} draws."
    return Reconstruction(
        images=images,
        labels=labels,
        energy=max(split.check, split.residual, *(one.check for one in undone)),
        outcome=Outcome(status=Status.FINISHED, message=message),
        seconds=time.perf_counter() - started,
        evidence=evidence,
    )


def _labels(observation: Observation, link: Link, images: Tensor, deltas: Tensor) -> Tensor:
    """The label of each image, (B,): the one whose own bias gradient points along its column of D; −1 if none does."""
    assert link.bias is not None
    classes = range(observation.input.num_classes)
    candidates = classes if observation.labels is None else sorted(set(observation.labels.tolist()))
    labels = torch.full((len(images),), UNKNOWN_LABEL, device=images.device)
    for index, image in enumerate(images):
        best = _ALIKE
        for label in candidates:
            one = torch.tensor([label], device=images.device)
            alone = observation.protocol.replay(observation.model, image[None], one)[link.bias].double().cpu()
            alike = abs(float(torch.cosine_similarity(alone, deltas[:, index], dim=0)))
            if alike > best:
                best, labels[index] = alike, label
    return labels
