"""What a tuner goes by: the attacker's own loss (``realistic``), or the likeness to the truth (``oracle``).

The realistic objective is the matching term alone (:func:`leakscope.attacks.explain.matching_loss`), the *same* one for
all trials (that of the attack before anything is varied), measured at the images a trial brings back. It rewards
explaining the signal and nothing else: where many images explain it equally well (large batches, noise), it does not
see what a good prior is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal

from torch import Tensor

from leakscope.attacks.explain import Judge
from leakscope.errors import BadInput
from leakscope.functional.matching import match
from leakscope.metrics import METRICS
from leakscope.types import Batch, Progress

__all__ = ["Objective", "Reporter", "oracle_judge"]

Objective = Literal["realistic", "oracle"]

_REPORTS: Final = 20


def oracle_judge(truth: Batch) -> Judge:
    """The mean SSIM of images to the originals they are matched to. The auditor's: no attack ever holds it."""
    ssim = METRICS["ssim"].value
    why = ssim.reason_undefined((truth.images.shape[1], truth.images.shape[2], truth.images.shape[3]))
    if why:
        raise BadInput(f"The oracle goes by SSIM, which {why}.")

    def judge(images: Tensor, labels: Tensor) -> float:
        found = images.detach().cpu()
        return float(ssim(found[match(found, truth.images)], truth.images).mean())

    return judge


class Reporter:
    """A callback that judges the best candidate some twenty times a run and hands the verdict on.

    ``report(index, value)`` gets the best value so far; ``index`` counts reports, so that runs of different lengths are
    compared at the same share of their way.
    """

    def __init__(self, judge: Judge, *, largest: bool, report: Callable[[int, float], None]) -> None:
        self._judge, self._largest, self._report = judge, largest, report
        self._best = -math.inf if largest else math.inf

    def __call__(self, progress: Progress) -> None:
        every = max(1, progress.steps // _REPORTS)
        # The last step is left out: the end of the run is judged by itself.
        if progress.step % every or progress.step == progress.steps or not math.isfinite(progress.best):
            return
        if progress.images is None or progress.labels is None:
            return
        value = self._judge(progress.images(), progress.labels())
        if math.isfinite(value):
            self._best = max(self._best, value) if self._largest else min(self._best, value)
            per_restart = -(-progress.steps // every)
            self._report(progress.restart * per_restart + progress.step // every, self._best)
