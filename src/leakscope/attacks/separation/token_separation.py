"""A whole batch taken apart, patch by patch, from the gradients of a vision transformer's first block.

Gradients of a batch arrive summed, but the sum is of rank B·P, not one, and a transformer's residual connections tie
its terms together: two quadratic forms, read off the gradients by linear least squares, are diagonal in the tokens of
the batch (:mod:`_forms`), so the tokens are the eigenvectors of a matrix (:mod:`_start`, :mod:`_unmix`). Which of them
make up an image shows in the attention, and what the labels are in the classifier's gradient (:mod:`_images`).

Needs a learnable position table, B·P ≤ C·p², twice the batch's tokens fewer than the width, and gradients in full
precision. No prior, no label, no optimisation of pixels. The client is replayed on what came out; where that does not
give the signal again, the attack refuses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.differentiate import LossProtocol
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.attacks.separation._block import first_block
from leakscope.attacks.separation._forms import quadratic_forms
from leakscope.attacks.separation._images import group, labels_of
from leakscope.attacks.separation._unmix import unmix
from leakscope.attacks.separation.confinement import confine
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import relative
from leakscope.functional.patches import from_patches
from leakscope.types import Callback, Observation, Outcome, Reconstruction, Status

__all__ = ["TokenSeparation", "token_separation"]

_WRONG: Final = 0.05


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSeparation:
    """Separate the tokens of a batch, and put images together from them; see the module."""

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        started = time.perf_counter()
        if not isinstance(observation.protocol, LossProtocol):
            raise NotApplicable(
                f"{type(observation.protocol).__name__} does not send the gradient of one loss: a weight delta of "
                "several steps mixes tokens at different weights, and the equations of none of them hold."
            )
        block = first_block(observation)
        space = confine(observation)
        forms = quadratic_forms(block, space)
        found = unmix(space, forms)
        members, clarity = group(block, forms, found.a, space.images)
        model = observation.model
        patches = (space.factor.right @ found.a).mT[members]  # (B, P, M)
        pixels = from_patches(patches, model.input.shape, space.patch) * model.std.double() + model.mean.double()
        images = pixels.nan_to_num(0).clamp(0, 1).to(device=model.device, dtype=model.dtype)
        images, labels = _in_order(observation, images, labels_of(observation, images))
        residual = replay_residual(observation, images, labels)
        if not residual < _WRONG:
            raise NotApplicable(
                f"The batch did not come apart: replaying the client on what came out misses the signal by "
                f"{residual:.0%} (misfit {found.misfit:.2g} after {found.steps} steps, where 1 is rounding). Noise, "
                "half precision or a defence, or two images too much alike."
            )
        return Reconstruction(
            images=images,
            labels=labels,
            energy=residual,
            outcome=Outcome(
                status=Status.FINISHED,
                message=f"{space.images} images of {space.count} patches came apart; a replay gives the signal again "
                f"up to {residual:.1g}.",
            ),
            steps=found.steps,
            seconds=time.perf_counter() - started,
            evidence={
                "batch size": space.images,
                "tokens": len(found.a),
                "rank": len(found.a),
                "condition": space.factor.condition,
                "gap": max(forms.gaps),
                "self-check": residual,
                "equations": forms.check,
                "misfit": found.misfit,
                "clarity of images": clarity,
                "label": "classifier's gradient",
            },
        )


@register_attack(
    "token-separation",
    cites="lu2022",
    leaky=Leaky(
        model={"name": "leakscope:april-b", "image_size": 16, "num_classes": 10},
        images={"from": ["bundled:cat", "bundled:coffee"], "batch_size": 2},
        psnr=30,
    ),
)
def token_separation() -> TokenSeparation:
    """Every image of a small batch, exactly, from the first block of a ViT with a learnable position table."""
    return TokenSeparation()


def replay_residual(observation: Observation, images: Tensor, labels: Tensor) -> float:
    """‖g(x) − g*‖ / ‖g*‖ over the whole signal: the self-check that needs no truth."""
    replayed = observation.protocol.replay(observation.model, images, labels)
    names = [name for name in observation.gradients if name in replayed]
    whole = torch.cat([observation.signal[name].double().flatten() for name in names])
    return relative(torch.cat([replayed[name].detach().double().flatten() for name in names]) - whole, whole)


def _in_order(observation: Observation, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Images in the order of the labels, where the server knows those and they are the ones that were found."""
    known = observation.labels
    if known is None or not torch.equal(known.sort().values, labels.to(known).sort().values):
        return images, labels
    order = labels.to(known).argsort(stable=True)[known.argsort(stable=True).argsort(stable=True)]
    return images[order], known
