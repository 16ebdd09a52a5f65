"""Controls, made on the auditor's side: what comes back without any leak, and from a start near the truth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.random import fork
from leakscope.types import Observation

__all__ = ["ControlledStart", "without_signal"]


def without_signal(observation: Observation, generator: torch.Generator) -> Observation:
    """The same observation with every tensor of its signal replaced by noise of the same norm: the prior-only control.

    What an attack brings back from it comes from the attack's own prior, the labels and public images it was granted,
    and chance. All of those stay, as do model, protocol and defences; only what the private images left behind goes.

    - A tensor becomes Gaussian noise of its norm, with as many zeros as it had, at random places: which entries are
      zero depends on the images, how many on the defence. A tensor of zeros stays one.
    - Several rounds share their common part and keep their spread, each replaced by noise of its norm, so that pooling
      over rounds gains what it gained before.
    - Running statistics become the model's own plus noise of the norm of their update; variances stay positive,
      counters stay.
    """
    own: dict[str, Tensor] = dict(observation.model.named_buffers())
    signals = (observation.signal, *observation.rounds)
    made: list[dict[str, Tensor]] = [{} for _ in signals]
    for name in observation.signal:
        base = own.get(name)
        values = [signal[name] for signal in signals]
        if not values[0].is_floating_point():
            new = values
        elif base is None:
            new = _replaced(values, fork(generator, f"control/{name}"))
        else:
            moved = _replaced([value - base.to(value) for value in values], fork(generator, f"control/{name}"))
            new = [_statistic(name, base.to(change) + change) for change in moved]
        for signal, value in zip(made, new, strict=True):
            signal[name] = value
    return replace(observation, signal=made[0], rounds=tuple(made[1:]))


def _replaced(values: list[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Noise of the norm of the common part, plus each round's own noise of the norm of its deviation."""
    common = torch.stack(values).mean(0) if len(values) > 1 else values[0]
    noise = _noise_like(common, generator)
    if len(values) == 1:
        return [noise]
    return [noise + _noise_like(value - common, generator) for value in values]


def _noise_like(value: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian noise with the norm and the number of zeros of ``value``."""
    if not torch.isfinite(value).all():
        return value.clone()  # a signal that is no signal: the attack meets the same as before
    flat = value.flatten()
    kept = int(torch.count_nonzero(flat))
    if kept == 0:
        return torch.zeros_like(value)
    drawn = torch.randn(kept, generator=generator, dtype=torch.float64)
    drawn = drawn * (flat.double().norm().cpu() / drawn.norm())
    noise = torch.zeros(flat.numel(), dtype=torch.float64)
    if kept == flat.numel():
        noise = drawn
    else:
        noise[torch.randperm(flat.numel(), generator=generator)[:kept]] = drawn
    return noise.to(value).view_as(value)


def _statistic(name: str, value: Tensor) -> Tensor:
    """A running variance cannot be negative; a small share of its typical size stands in where noise made it so."""
    if not name.endswith("var"):
        return value
    floor = 0.01 * value.abs().mean()
    return torch.maximum(value, floor)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledStart:
    """A start near the truth: x₀ = where(M, ξ, x), M ~ Bernoulli(``noise``) per pixel, ξ ~ N(0, 1).

    For difficulty studies only: no server could make it. With 0 it starts at the private images themselves, with 1 at
    noise; in between it shows how far from the truth the attacker's loss still leads to it.

    ``images`` are the *normalised* inputs (B, C, H, W), as :meth:`leakscope.VisionModel.normalise` gives them. A pixel
    is replaced in all its channels. A record of such a run holds ``noise``, not the pixels. With a ``seed`` of its own
    it is the same start whoever asks, so that it can be scored before the attack.
    """

    images: Tensor = field(repr=False, compare=False)
    noise: float
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.images.ndim != 4:
            raise BadInput(f"A controlled start needs images (B, C, H, W); got {tuple(self.images.shape)}.")
        if not 0 <= self.noise <= 1:
            raise BadInput(f"noise is {self.noise}; it is the share of pixels to replace, from 0 to 1.")

    def start(self, observation: Observation, labels: Tensor | None, generator: torch.Generator) -> Tensor:
        wanted = (observation.batch_size, *observation.input.shape)
        if wanted != tuple(self.images.shape):
            raise BadInput(f"The start was made from images {tuple(self.images.shape)}; the attack asks for {wanted}.")
        return self.drawn(generator)

    def drawn(self, generator: torch.Generator) -> Tensor:
        """The start itself; with a ``seed`` of its own, ``generator`` plays no part."""
        truth = self.images.detach().cpu()
        if self.seed is not None:
            generator = fork(torch.Generator().manual_seed(self.seed), "controlled start")
        drawn = torch.randn(truth.shape, generator=generator, dtype=torch.float64).to(truth)
        batch, _, height, width = truth.shape
        replaced = torch.rand((batch, 1, height, width), generator=generator, dtype=torch.float64) < self.noise
        return torch.where(replaced, drawn, truth)
