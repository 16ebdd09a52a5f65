"""The controlled start of the feasibility study: how near the truth must an attack begin to get there?"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from leakscope.attacks import Optimisation
from leakscope.audit.controls import ControlledStart
from leakscope.audit.study import Point, Setup, register_study
from leakscope.errors import BadInput
from leakscope.metrics import METRICS
from leakscope.random import fork


@register_study("difficulty", x="noise", metric="ssim", cites="valadi2025")
def difficulty(setup: Setup) -> Iterator[Point]:
    """Starts with a share p of the pixels replaced by noise, p in tenths; SSIM before and after.

    ``moved`` is SSIM after minus before: positive where the attack moved towards the truth, negative where away. The
    start knows the truth, so this measures how hard the problem is, not what a server could do.
    """
    attack = setup.case().attack
    if not isinstance(attack, Optimisation):
        raise BadInput(f"'{setup.attack}' has no start to control: this study is for optimisation attacks.")
    inputs = setup.model.normalise(setup.batch.images.to(setup.model.dtype))
    for tenths in range(11):
        start = ControlledStart(images=inputs, noise=tenths / 10)
        drawn = start(tuple(inputs.shape), fork(torch.Generator().manual_seed(setup.seed), f"before/{tenths}"))
        pixels = setup.model.denormalise(drawn).clamp(0, 1)
        before = METRICS["ssim"].value(pixels, setup.batch.images).mean()
        yield Point(
            at={"noise": tenths / 10},
            case=setup.case(attack=replace(attack, init=start)),
            extra={"ssim before": float(before)},
        )
