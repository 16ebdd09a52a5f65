"""Which client would have sent this? Guesses, replayed on known images and compared with what was sent.

Likely mistakes are tried one at a time: BatchNorm's mode, the number of steps, the loss's reduction, the optimiser, the
local batch size, the order of the images, and the learning rate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor

from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.client.local_optimisers import Adam, Sgd
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.types import Batch, Signal

__all__ = ["Client", "Guess", "Hints", "Search", "improved", "relative_error"]

Client = FedSGD | FedAvg

_WORK: Final = 400
"""How many local steps are replayed in all, so that a check of a large model ends."""
_FITS: Final = 4
_STEPS: Final = (1, 2, 3, 4, 5, 8, 10, 20)
_ORDERS: Final = 24
_STRIDE: Final = 10**0.25
_GRID: Final = tuple(_STRIDE**power for power in range(-6, 7) if power)
_RATE: Final = "the learning rate is"


@dataclass(frozen=True, slots=True)
class Guess:
    """A client, the order it takes the images in, and how far its replay is off, as it is and at the best ``scale``."""

    client: Client
    order: tuple[int, ...]
    error: float
    scale: float
    shape_error: float
    mistakes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the update itself tells of the client, so that nothing else has to be tried: see ``Inferred``."""

    mode: Literal["train", "eval"] | None = None
    steps: int | None = None


class Search:
    """Replays guesses on known images, as long as the work lasts, and remembers none of them."""

    def __init__(self, sent: Mapping[str, Tensor], model: VisionModel, batch: Batch) -> None:
        self.sent, self.model = sent, model
        self.images = batch.images.to(device=model.device, dtype=model.dtype)
        self.labels = batch.labels.to(model.device)
        self.names = {name for name, _ in model.named_parameters()}
        self.left = _WORK

    def replay(self, client: Client, order: tuple[int, ...]) -> Signal:
        rows = torch.tensor(order, device=self.model.device)
        return client.replay(self.model, self.images[rows], self.labels[rows])

    def judge(self, client: Client, order: tuple[int, ...], mistakes: tuple[str, ...], replayed: Signal) -> Guess:
        replayed = {name: value for name, value in replayed.items() if name in self.names}
        return Guess(client, order, relative_error(self.sent, replayed), *_scale(self.sent, replayed), mistakes)

    def guess(self, client: Client, order: tuple[int, ...], mistakes: tuple[str, ...]) -> Guess | None:
        """The guess judged, unless such a client could not have run or the work is used up."""
        steps = len(client.plan(len(order))) if isinstance(client, FedAvg) else 1
        if steps > self.left:
            return None
        self.left -= steps
        try:
            made = self.judge(client, order, mistakes, self.replay(client, order))
        except BadInput:  # BatchNorm over a single image, say
            return None
        return made if math.isfinite(made.error) else None

    def at_rate(self, start: Guess, rate: float) -> Guess | None:
        client = start.client
        if not isinstance(client, FedAvg) or not isinstance(client.optimiser, Sgd | Adam):
            return None
        if not (math.isfinite(rate) and rate > 0):
            return None
        changed = replace(client, optimiser=replace(client.optimiser, lr=rate))
        kept = tuple(m for m in start.mistakes if not m.startswith(_RATE))
        return self.guess(changed, start.order, (*kept, f"{_RATE} {rate:.6g}"))

    def fit_rate(self, start: Guess, tolerance: float) -> Guess:
        """The learning rate that fits best. One step is linear in it; for several, a grid, then a golden section."""
        if not isinstance(start.client, FedAvg):
            return start
        rate, best = start.client.optimiser.lr, start
        for _ in range(_FITS):  # η ← c·η, as long as that helps
            one = self.at_rate(best, _rate_of(best) * best.scale)
            if one is None or one.error >= best.error:
                break
            best = one
        if best.error <= tolerance or len(start.client.plan(len(start.order))) == 1:
            return best
        for factor in _GRID:
            one = self.at_rate(start, rate * factor)
            best = one if one is not None and one.error < best.error else best
        low, high = _rate_of(best) / _STRIDE, _rate_of(best) * _STRIDE
        while high / low > 1 + 1e-7:
            inner = [low * (high / low) ** share for share in (0.382, 0.618)]
            pair = [self.at_rate(start, value) for value in inner]
            if pair[0] is None or pair[1] is None:
                break
            best = min([best, pair[0], pair[1]], key=lambda one: one.error)
            low, high = (low, inner[1]) if pair[0].error < pair[1].error else (inner[0], high)
            if best.error <= tolerance / 2:
                break
        for digits in (1, 2, 3):  # people choose round numbers
            one = self.at_rate(best, float(f"{_rate_of(best):.{digits - 1}e}"))
            if one is not None and one.error <= max(best.error, tolerance):
                return one
        return best


def relative_error(sent: Mapping[str, Tensor], replayed: Signal) -> float:
    """‖replayed − sent‖ / ‖sent‖; what the replay does not have counts as zero, and the other way round."""
    off, size, extra = 0.0, 0.0, set(replayed) - set(sent)
    for name, value in sent.items():
        other = replayed[name].detach().double() if name in replayed else torch.zeros_like(value, dtype=torch.float64)
        off += float((other - value.double()).square().sum())
        size += float(value.double().square().sum())
    off += sum(float(replayed[name].detach().double().square().sum()) for name in extra)
    return math.sqrt(off / size) if size else math.inf


def improved(search: Search, start: Guess, count: int, hints: Hints, tolerance: float) -> Guess:
    """The best of everything that differs from ``start`` in one thing; the learning rate last, as it takes longest."""
    best = search.at_rate(start, _rate_of(start) * start.scale) or start
    if best.error <= tolerance:
        return best
    best = best if best.error < start.error else start
    for what, client, order in _likely(start, count, hints):
        one = search.guess(client, order, (*start.mistakes, what))
        if one is None:
            continue
        if one.error > tolerance:
            one = min([one, search.at_rate(one, _rate_of(one) * one.scale) or one], key=lambda g: g.error)
        best = one if one.error < best.error else best
        if best.error <= tolerance:
            return best
    return min([best, search.fit_rate(start, tolerance)], key=lambda one: one.error)


def _scale(sent: Mapping[str, Tensor], replayed: Signal) -> tuple[float, float]:
    """The factor c that makes c · replayed closest to what was sent, and the error that is left: √(1 − cos²)."""
    dot = sum(float((replayed[n].detach().double() * v.double()).sum()) for n, v in sent.items() if n in replayed)
    size = sum(float(v.detach().double().square().sum()) for v in replayed.values())
    wanted = sum(float(v.double().square().sum()) for v in sent.values())
    if not size or not wanted:
        return 0.0, 1.0
    return dot / size, math.sqrt(max(0.0, 1 - dot * dot / (size * wanted)))


def _rate_of(guess: Guess) -> float:
    return guess.client.optimiser.lr if isinstance(guess.client, FedAvg) else math.nan


def _likely(guess: Guess, count: int, hints: Hints) -> Iterator[tuple[str, Client, tuple[int, ...]]]:
    """Clients that differ in one thing, with what that is in words."""
    client, order = guess.client, guess.order
    other: Literal["train", "eval"] = "train" if client.mode == "eval" else "eval"
    if hints.mode in (None, other):
        yield f"BatchNorm ran in {other} mode", replace(client, mode=other), order
    summed: Literal["sum", "mean"] = "sum" if client.reduction == "mean" else "mean"
    yield f"the loss is a {summed} over the batch", replace(client, reduction=summed), order
    if not isinstance(client, FedAvg):
        return
    steps = len(client.plan(count))
    for number in (hints.steps,) if hints.steps else _STEPS:
        if number != steps:
            plural = "" if number == 1 else "s"
            yield f"the client took {number} step{plural}", replace(client, steps=number, epochs=None), order
    rate = client.optimiser.lr
    for name, optimiser in (
        ("SGD", Sgd(lr=rate)),
        ("SGD with momentum 0.9", Sgd(lr=rate, momentum=0.9)),
        ("Adam", Adam(lr=rate)),
        ("AdamW", Adam(lr=rate, decoupled=True, weight_decay=0.01)),
    ):
        if optimiser != client.optimiser:
            yield f"the optimiser is {name}", replace(client, optimiser=optimiser), order
    size = client.batch_size or count
    for smaller in sorted({1, 2, 4, 8, 16, 32, count // 2, count} - {size, 0}):
        if smaller <= count:
            # As many passes over the data as were believed.
            passes = max(1, round(steps * size / count))
            changed = replace(client, batch_size=smaller, steps=None, epochs=passes)
            yield f"the local batch size is {smaller}", changed, order
    if size < count and client.order == "fixed":
        for permuted in itertools.islice(itertools.permutations(range(count)), 1, _ORDERS):
            yield f"the images came in the order {list(permuted)}", client, permuted
