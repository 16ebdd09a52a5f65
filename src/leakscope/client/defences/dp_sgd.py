"""DP-SGD: every image's gradient is clipped, and noise of the clip's size is added to their sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

import torch
from torch import Tensor

from leakscope.client.defences._parts import draw, each_gradient, finite, norm
from leakscope.client.fedsgd import FedSGD
from leakscope.client.precision import rounded
from leakscope.client.registry import register_defence
from leakscope.errors import BadInput, MissingExtra
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import ClientProtocol, Defence, Setting, Signal

__all__ = ["DPSGD", "PerSampleClipping"]

_OFFSET: Final = 1e-6  # Opacus adds it to each norm


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PerSampleClipping:
    """g = 1/B Σ_b g_b · min(1, clip / ‖g_b‖) over the gradients of single images, as ``inner`` computes them.

    With ``reduction="sum"`` the sum. Differentiable; the cost is one backward pass for each image.
    """

    inner: FedSGD
    clip: float

    @property
    def reduction(self) -> Literal["mean", "sum"]:
        return self.inner.reduction

    def replay(
        self,
        model: VisionModel,
        images: Tensor,
        labels: Tensor,
        *,
        create_graph: bool = False,
        generator: torch.Generator | None = None,
    ) -> Signal:
        if self.inner.mode == "train" and model.anatomy.mixes_samples:
            raise BadInput(
                f"{model.name} mixes the images of a batch in train mode (BatchNorm), so no image has a gradient "
                "of its own to clip. Use evaluation mode, or a model with group or layer norm."
            )
        total: dict[str, Tensor] = {}
        whole = replace(self.inner, precision="full")
        for index, (image, label) in enumerate(zip(images.split(1), labels.split(1), strict=True)):
            draws = None if generator is None else fork(generator, f"sample/{index}")
            own = whole.replay(model, image, label, create_graph=create_graph, generator=draws)
            factor = (self.clip / (norm(own) + _OFFSET)).clamp(max=1.0)
            for name, value in own.items():
                total[name] = total[name] + value * factor if name in total else value * factor
        count = len(images) if self.reduction == "mean" else 1
        return {name: rounded(value / count, self.inner.precision) for name, value in total.items()}


@final
@register_defence("dp-sgd", cites="abadi2016")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPSGD(Defence):
    """Clips each image's gradient to norm ``clip`` and adds Gaussian noise of ``noise_multiplier`` × clip to their sum.

    The same update as Opacus makes. :meth:`epsilon` is what its accountant says that buys.
    """

    clip: float = 1.0
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        finite("clip", self.clip, strict=True)
        finite("noise_multiplier", self.noise_multiplier)

    def prepare(self, setting: Setting, *, generator: torch.Generator) -> Setting:
        return setting.follow(self._clipped)

    def __call__(self, signal: Signal, *, setting: Setting, generator: torch.Generator) -> Signal:
        if self.noise_multiplier == 0:
            return signal
        summed = getattr(setting.protocol, "reduction", "mean") == "sum"
        deviation = self.noise_multiplier * self.clip / (1 if summed else len(setting.images))
        return each_gradient(signal, setting, lambda value: value + deviation * draw(torch.randn, value, generator))

    def deviation(self, observed: Signal, batch_size: int) -> Mapping[str, float]:
        return dict.fromkeys(observed, self.noise_multiplier * self.clip / batch_size)

    def pool(self, signals: Sequence[Signal]) -> tuple[Signal, Defence]:
        mean, _ = Defence.pool(self, signals)
        return mean, replace(self, noise_multiplier=self.noise_multiplier / math.sqrt(len(signals)))

    def epsilon(self, *, sample_rate: float, steps: int, delta: float = 1e-5) -> float:
        """ε at ``delta`` after ``steps`` updates on batches drawn at ``sample_rate``, by Opacus' RDP accountant."""
        finite("sample_rate", sample_rate, high=1.0, strict=True)
        finite("delta", delta, high=1.0, strict=True)
        if self.noise_multiplier == 0:
            return float("inf")
        try:
            from opacus.accountants import RDPAccountant
        except ImportError as error:
            raise MissingExtra("The privacy accountant", "fl") from error
        accountant = RDPAccountant()
        accountant.history = [(self.noise_multiplier, sample_rate, steps)]
        return float(accountant.get_epsilon(delta=delta))

    def _clipped(self, protocol: ClientProtocol) -> ClientProtocol:
        if not isinstance(protocol, FedSGD):
            raise BadInput(
                f"dp-sgd clips the gradients of single images of a client that sends one gradient (FedSGD); this one "
                f"is a {type(protocol).__name__}. For local training use 'clipping' and 'gaussian-noise' on the update."
            )
        return PerSampleClipping(inner=protocol, clip=self.clip)
