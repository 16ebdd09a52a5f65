"""What both workers of ``peers.py`` share: the conversation over stdin/stdout, the clock and the memory gauge.

Runs in the project's environment and in the peer's, so it imports nothing but torch and safetensors. One JSON object
per line goes in (a :class:`Job`), one comes out (a result or ``{"error": …}``); tensors travel in safetensors files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["Job", "Run", "numbered", "relative_error", "serve"]

WARM_UP_STEPS = 4
"""Steps run once, untimed, before a worker's first attack, so that lazy set-up (kernels, scripts) is on no clock."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attack on one image.

    ``weights`` holds the classifier's parameters and buffers, numbered in order (``p000``, … and ``b000``, …);
    ``sample`` holds ``image`` (1, C, H, W) in [0, 1], ``label`` (1,), the client's gradients (``g000``, …) and
    ``start``, where both tools begin: N(0, 1), in normalised units. ``options`` are settings given by hand, if any.
    """

    model: str
    attack: str
    weights: str
    sample: str
    out: str
    steps: int
    seed: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    options: list[str]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A prepared attack: ``go(steps)`` gives pixels (1, C, H, W) and the number of steps it made.

    ``gradient_error`` is how far the worker's own client is from the gradients in the sample, relatively.
    """

    go: Callable[[int], tuple[Tensor, int]]
    gradient_error: float
    notes: dict[str, object]


def serve(prepare: Callable[[Job, dict[str, Tensor], dict[str, Tensor]], Run], about: dict[str, object]) -> None:
    """Answer jobs until stdin closes. Only the attack itself is on the clock."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    wire = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    sys.stdout = sys.stderr  # a library that prints must not break the conversation
    _reset_peak()
    base = _peak_bytes()
    print(json.dumps({**about, "torch": torch.__version__, "threads": threads, "base_bytes": base}), file=wire)
    warm = False
    for line in sys.stdin:
        try:
            fields = json.loads(line)
            job = Job(**{**fields, "mean": tuple(fields["mean"]), "std": tuple(fields["std"])})
            run = prepare(job, load_file(job.weights), load_file(job.sample))
            if not warm:
                run.go(WARM_UP_STEPS)
                warm = True
            wall, cpu = time.perf_counter(), time.process_time()
            pixels, steps = run.go(job.steps)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            save_file({"image": pixels.detach().clamp(0, 1).float().contiguous()}, job.out)
            answer = {
                "seconds": wall,
                "cpu_seconds": cpu,
                "steps": steps,
                "seconds_per_step": wall / max(steps, 1),
                "peak_bytes": _peak_bytes(),
                "attack_bytes": _peak_bytes() - base,
                "gradient_error": run.gradient_error,
                "job": asdict(job) | {"out": Path(job.out).name},
                "notes": run.notes,
            }
        except Exception as error:  # the other side decides what a failed attack means; the worker lives on
            traceback.print_exc(file=sys.stderr)
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=wire)


def relative_error(given: list[Tensor], expected: list[Tensor]) -> float:
    """‖given − expected‖ / ‖expected‖ over the concatenation, in float64."""
    if [g.shape for g in given] != [e.shape for e in expected]:
        raise ValueError("The two models' gradients do not have the same shapes in the same order.")
    gap = sum(float((g.double() - e.double()).square().sum()) for g, e in zip(given, expected, strict=True))
    return (gap / sum(float(e.double().square().sum()) for e in expected)) ** 0.5


def numbered(tensors: dict[str, Tensor], letter: str) -> list[Tensor]:
    """The tensors whose names are ``letter`` and a number, in order."""
    return [tensors[name] for name in sorted(tensors) if name[0] == letter and name[1:].isdigit()]


def _reset_peak() -> None:
    """Forget the peak of the imports, where the system lets us; elsewhere it stays in the figures."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak_bytes() -> int:
    """The process's largest resident size.

    Linux says it in ``/proc``. What ``getrusage`` says there takes the parent's size at the start into account.
    """
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
