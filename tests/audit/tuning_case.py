"""A search small enough to run in a second, for this process and for those that tests start and kill.

``python tuning_case.py URL TRIALS BEAT READY`` works on the study until it has claimed a trial, then writes the file
READY and waits there, with a sign of life every BEAT seconds, until it is killed or there is a file READY.go.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import leakscope as ls
from leakscope.audit.run import Case
from leakscope.audit.tuned import Row, Tuned
from leakscope.audit.tuner import Tuning, tune
from leakscope.audit.tuner_space import Range
from leakscope.types import Callback, Progress

STUDY = "small"
STEPS = 20


def tuning(**changes: object) -> Tuning:
    options: dict[str, object] = {"steps": STEPS}
    settings: dict[str, object] = {
        "case": Case(
            model=ls.load_model("leakscope:mlp?hidden=8", image_size=12),
            batch=ls.bundled_batch(["astronaut", "cat"], size=12),
            client=ls.FedSGD(),
            threat=ls.threats.WITH_LABELS,
            attack_name="inverting-gradients",
            attack=ls.attack("inverting-gradients", **options),
            seed=3,
        ),
        "options": options,
        "space": {"tv": Range(low=1e-6, high=1e-1, log=True), "lr": Range(low=1e-3, high=1.0, log=True)},
        "trials": 4,
        "beat": 1.0,
        "grace": 600.0,  # the machine's load must never look like death
    }
    return Tuning(**{**settings, **changes})  # pyright: ignore[reportArgumentType]


def run(
    search: Tuning,
    url: str,
    *,
    ended: Callable[[Row], None] | None = None,
    callback: Callable[[int], Callback] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Tuned:
    return tune(search, storage=url, study=STUDY, ended=ended, callback=callback, stop=stop)


def _claim_and_wait(url: str, trials: int, beat: float, ready: Path) -> None:
    def callback(slot: int) -> Callback:
        def told(progress: Progress) -> None:
            part = ready.with_suffix(".part")
            part.write_text(str(slot))
            part.replace(ready)
            while not ready.with_suffix(".go").exists():
                time.sleep(0.05)

        return told

    run(tuning(trials=trials, beat=beat), url, callback=callback)
    ready.with_suffix(".done").touch()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    _claim_and_wait(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
