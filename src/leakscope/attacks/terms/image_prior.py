"""What another network, trained on many pictures, takes for ordinary: its BatchNorm statistics as an image prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from leakscope.attacks.terms.base import Bound, Candidate, Evaluation
from leakscope.models.image_prior import DEFAULT, load_image_prior
from leakscope.types import Observation

__all__ = ["ImagePrior"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePrior:
    """R_image = Σ_l ‖μ_l(x) − μ_l,BN‖₂ + ‖σ²_l(x) − σ²_l,BN‖₂ over a CNN's BatchNorm layers (GradViT, Eq. 4).

    ``network`` and ``weights`` are as :func:`leakscope.models.image_prior.load_image_prior` takes them. ``size``:
    enlarge the images to so many pixels first, for a network trained on larger ones; ``None`` shows them as they are.
    """

    network: str = DEFAULT
    weights: str | None = None
    size: int | None = None

    def watches(self, observation: Observation) -> tuple[str, ...]:
        return ()

    def bind(self, observation: Observation) -> Bound:
        model = observation.model
        prior = load_image_prior(self.network, self.weights, device=str(model.device), dtype=model.dtype)

        def mismatch(candidate: Candidate, evaluation: Evaluation) -> Tensor:
            images = candidate.images
            if self.size is not None:
                images = torch.nn.functional.interpolate(images, size=self.size, mode="bilinear", align_corners=False)
            gaps: list[Tensor] = []
            for layer, features in prior.inputs_of_norms(images):
                spread, centre = torch.var_mean(features.transpose(0, 1).flatten(1), dim=1, correction=0)  # (channels,)
                gaps += [(centre - layer.mean).norm(), (spread - layer.variance).norm()]
            return torch.stack(gaps).sum()

        return mismatch
