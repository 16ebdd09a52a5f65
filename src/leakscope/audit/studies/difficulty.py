"""The controlled start of the feasibility study: how near the truth must an attack begin to get there?"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from leakscope.attacks import Optimisation
from leakscope.audit.controls import ControlledStart
from leakscope.audit.record import Record
from leakscope.audit.run import Case
from leakscope.audit.study import Point, Setup, register_study
from leakscope.audit.study_models import subjects
from leakscope.errors import BadInput
from leakscope.metrics import METRICS


@register_study("difficulty", x="noise", series="model", metric="ssim", cites="valadi2025", costly=True, several=True)
def difficulty(setup: Setup) -> Iterator[Point]:
    """Starts with a share p of the pixels replaced by noise, p in tenths; SSIM before and after.

    ``moved`` is SSIM after minus before: positive where the attack moved towards the truth, negative where away. The
    start knows the truth, so this measures how hard the problem is, not what a server could do.
    """
    attack = setup.case().attack
    if not isinstance(attack, Optimisation):
        raise BadInput(f"'{setup.attack}' has no start to control: this study is for optimisation attacks.")
    for subject in subjects(setup):
        inputs = subject.model.normalise(setup.batch.images.to(subject.model.dtype))
        for tenths in range(11):
            start = ControlledStart(images=inputs, noise=tenths / 10, seed=setup.seed)
            pixels = subject.model.denormalise(start.drawn(torch.Generator())).clamp(0, 1)
            before = float(METRICS["ssim"].value(pixels, setup.batch.images).mean())

            def moved(case: Case, record: Record, folder: Path, before: float = before) -> Mapping[str, float]:
                after = [value for value in record.metric("ssim") or [] if value == value]
                return {"moved": sum(after) / len(after) - before} if after else {}

            yield Point(
                at={"noise": tenths / 10, "model": subject.label},
                case=setup.case(model=subject.model, attack=replace(attack, init=start)),
                extra={"ssim before": before, **subject.extra},
                after=moved,
            )
