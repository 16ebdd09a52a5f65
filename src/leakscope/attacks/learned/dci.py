"""Divide-and-conquer inversion of split features: Dong et al., BMVC 2022.

The client's half F = F_K ∘ … ∘ F_1 is inverted part by part. Inverse k has the shape of its part turned round, and is
trained on

    ‖F_k⁻¹(h_k) − h_{k−1}‖₁ + ‖x̂_k − x‖₁ + Σ_{j ≤ k} ‖F_{j…1}(x̂_k) − h_j‖₁,     x̂_k = F_1⁻¹ ∘ … ∘ F_k⁻¹(h_k),

then inverses 1 … k are fine-tuned together on the same loss. Pixels and features count in units of their own deviation.
Where defences change what is sent, the last inverse is trained on that in place of h_K; what it is to give back stays
clean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.learned.front import Front, front_of
from leakscope.attacks.learned.inverse_blocks import InverseBlock, InverseRows
from leakscope.attacks.learned.inverter import InverseNetwork
from leakscope.attacks.learned.learned import LearnedAttack
from leakscope.attacks.learned.synthesis import Synthesis
from leakscope.attacks.learned.training import Stage, Training
from leakscope.attacks.parts import cosine_decay
from leakscope.attacks.registry import register_attack
from leakscope.client.split import Split
from leakscope.errors import BadInput, NotApplicable
from leakscope.models import VisionModel

__all__ = ["DCI", "DCINetwork", "dci", "decoder"]

_MANY, _AT_ONCE = 256, 16


@final
class DCINetwork(InverseNetwork):
    """Inverses of the parts of a front, first to last; images come out of the first."""

    replays = False
    measured_on = 100

    def __init__(self, front: Front, *, width: int, blockwise: bool, cycle: bool, generator: torch.Generator) -> None:
        super().__init__()
        self._front, self._blockwise, self._cycle = front, blockwise, cycle
        shapes = (front.model.input.shape, *front.shapes)
        self.inverses = nn.ModuleList(
            (InverseBlock if len(before) == 3 == len(after) else InverseRows)(before, after, width, generator)
            for after, before in pairwise(shapes)
        )
        for k, shape in enumerate(shapes):
            self.register_buffer(f"mean{k}", torch.zeros(_per_channel(shape)))
            self.register_buffer(f"size{k}", torch.ones(_per_channel(shape)))

    def read(self, signal: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(signal)

    def start(self, rows: Mapping[str, Tensor], images: Tensor) -> None:
        """The mean and deviation of every channel of the pixels and of every part's features."""
        parts = images[:_MANY].flatten(0, 1).split(_AT_ONCE)
        moments = [
            [torch.zeros_like(self.get_buffer(f"mean{k}")) for _ in range(2)] for k in range(len(self.inverses) + 1)
        ]
        with torch.no_grad():
            for part in parts:
                for found, h in zip(moments, [part, *self._front(part)], strict=True):
                    over = (0, 2, 3) if h.ndim == 4 else (0,)
                    for total, power in zip(found, (h, h.square()), strict=True):
                        total += power.mean(over, keepdim=True)[0] * len(part) / sum(len(one) for one in parts)
        for k, (mean, square) in enumerate(moments):
            self.get_buffer(f"mean{k}").copy_(mean)
            # A channel that is silent on these images counts little, not infinitely much.
            size = (square - mean.square()).clamp_min(0).sqrt()
            self.get_buffer(f"size{k}").copy_(size.clamp_min(0.1 * float(size.mean()) + 1e-8))

    def forward(self, rows: Mapping[str, Tensor]) -> Tensor:
        h = rows[self._front.cut]  # (N, B, …)
        last = len(self.inverses) - 1
        return self._down(self._scaled(h.flatten(0, 1), last), last)[0].unflatten(0, h.shape[:2])

    def stages(self, steps: int) -> tuple[Stage, ...]:
        """Inverse 1; then each further one alone, and all so far together; at last all of them, for ``steps``.

        Those before the last take as many together: what they prepare, the last one finishes.
        """
        count = len(self.inverses)
        final = Stage(name=_name(1, count), steps=steps)
        if not self._blockwise or count == 1:
            return (final,)
        each = max(1, steps // (2 * count - 2))
        stages: list[Stage] = []
        for k in range(1, count + 1):
            stages.append(Stage(name=_name(k, k), steps=each, parameters=(f"inverses.{k - 1}.",)))
            if 1 < k < count:
                together = tuple(f"inverses.{j}." for j in range(k))
                stages.append(Stage(name=_name(1, k), steps=each, parameters=together))
        return (*stages, final)

    def reads(self, stage: Stage) -> bool:
        return _last(stage) == len(self.inverses) - 1

    def loss(self, stage: Stage, rows: Mapping[str, Tensor], images: Tensor) -> Tensor:
        pixels, last = images.flatten(0, 1), _last(stage)
        with torch.no_grad():
            truth = [self._scaled(h, k) for k, h in enumerate(self._front(pixels, last + 1))]
        made, below = self._down(self._sent(rows, truth[last], last), last)
        total = ((made - pixels) / self.get_buffer("size0")).abs().mean()
        if not self._cycle:
            return total
        if last:
            total = total + F.l1_loss(below, truth[last - 1])
        again = [F.l1_loss(self._scaled(h, k), truth[k]) for k, h in enumerate(self._front(made, last + 1))]
        return total + torch.stack(again).sum()

    def error(self, stage: Stage, rows: Mapping[str, Tensor], images: Tensor) -> Tensor:
        pixels, last = images.flatten(0, 1), _last(stage)
        sent = rows.get(self._front.cut)
        clean = self._front(pixels, last + 1)[last] if sent is None else sent.flatten(0, 1)
        return F.mse_loss(self._down(self._scaled(clean, last), last)[0].clamp(0, 1), pixels)

    def _sent(self, rows: Mapping[str, Tensor], clean: Tensor, last: int) -> Tensor:
        """The scaled features that inverse ``last`` starts from: those a client sent, where rows hold them."""
        sent = rows.get(self._front.cut)
        return clean if sent is None else self._scaled(sent.flatten(0, 1), last)

    def _down(self, scaled: Tensor, last: int) -> tuple[Tensor, Tensor]:
        """(pixels, the scaled features one part below) from the scaled features of part ``last``."""
        below = state = self.inverses[last](scaled)
        for k in reversed(range(last)):
            state = self.inverses[k](state)
        return state * self.get_buffer("size0") + self.get_buffer("mean0"), below

    def _scaled(self, h: Tensor, k: int) -> Tensor:
        """The features h of part k in units of their own deviation."""
        return (h - self.get_buffer(f"mean{k + 1}")) / self.get_buffer(f"size{k + 1}")


def _per_channel(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], 1, 1) if len(shape) == 3 else shape


def _name(first: int, last: int) -> str:
    return f"parts {first}–{last}"


def _last(stage: Stage) -> int:
    return int(stage.name.rpartition("–")[2]) - 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DCI:
    """The inverses for a model and a cut. ``blockwise`` and ``cycle`` are the method; without, a plain decoder."""

    width: int
    parts: int
    blockwise: bool = True
    cycle: bool = True

    def __post_init__(self) -> None:
        for name, value in (("width", self.width), ("parts", self.parts)):
            if value < 1:
                raise BadInput(f"{name} is {value}; it must be at least 1.")

    def build(
        self, model: VisionModel, shapes: Mapping[str, tuple[int, ...]], batch_size: int, generator: torch.Generator
    ) -> DCINetwork:
        modules = {name for name, _ in model.named_modules()}
        if len(shapes) != 1 or not set(shapes) <= modules:
            raise NotApplicable("Feature inversion needs a client that sends the features of one module (Split).")
        ((cut, sent),) = shapes.items()
        front = front_of(model, Split(cut=cut), parts=self.parts)
        if sent != (batch_size, *front.shapes[-1]):
            raise NotApplicable(f"The client sends features of shape {sent} for {batch_size} images: not one for each.")
        return DCINetwork(front, width=self.width, blockwise=self.blockwise, cycle=self.cycle, generator=generator)


@register_attack("dci", cites="dong2022")
def dci(
    *,
    steps: int = 1000,
    data: Literal["public", "synthetic", "leaves"] = "public",
    images: int = 2048,
    leaves: int = 4096,
    synthesis_steps: int = 100,
    width: int = 32,
    parts: int = 9,
    lr: float = 3e-3,
    batch: int = 16,
    patience: int | None = None,
    seed: int = 0,
) -> LearnedAttack:
    """Split features undone part by part by inverse blocks, on public images or on ones that are made up.

    ``steps`` are those of the last stage, when all inverses are trained together; the stages before it take as many.
    ``data=synthetic``: on ``images`` made up from the model's BatchNorm statistics, ``synthesis_steps`` long, and on as
    many drawn dead leaves as ``leaves`` says. ``data=leaves``: on those alone, for a model without such statistics.
    """
    return LearnedAttack(
        name="dci",
        architecture=DCI(width=width, parts=parts),
        training=Training(lr=lr, schedule=cosine_decay, batch=batch, every=100, patience=patience, clip=1.0),
        steps=steps,
        options={"width": width, "parts": parts},
        seed=seed,
        synthesis=None
        if data == "public"
        else Synthesis(count=images if data == "synthetic" else 0, leaves=leaves, steps=synthesis_steps),
    )


@register_attack("decoder", cites="dong2022")
def decoder(
    *, steps: int = 2000, width: int = 32, parts: int = 9, lr: float = 3e-3, batch: int = 16, seed: int = 0
) -> LearnedAttack:
    """The same inverse blocks trained at once, on pixels alone: the reference that dci is measured against."""
    return LearnedAttack(
        name="decoder",
        architecture=DCI(width=width, parts=parts, blockwise=False, cycle=False),
        training=Training(lr=lr, schedule=cosine_decay, batch=batch, every=100, clip=1.0),
        steps=steps,
        options={"width": width, "parts": parts},
        seed=seed,
    )
