"""Time to quality on smooth networks: least squares against signed Adam and L-BFGS, in processor seconds.

    python benchmarks/second_order.py [--targets lenet,mlp,april-28] [--images cat,coffee] [--seconds 60]
    python benchmarks/second_order.py --data cifar10.zip --count 3      # images of your own

Each attack gets ``--seconds`` of one core for each image; its picture is scored after every step, outside its clock.
Printed are the seconds until the best *measured* point (what the attack would hand over) first reached each PSNR, and
its PSNR at the end. The start decides much, so L-BFGS and signed Adam also run from the grey that least squares starts
from. Signed Adam's learning rate falls over its steps, whose number is what it can do within the time.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

import leakscope as ls
from _peer_images import read_images
from leakscope.attacks.parts import EvenGrey

TARGETS = {
    "lenet": ("leakscope:lenet-dlg", 32),
    "mlp": ("leakscope:mlp?hidden=64,32&activation=tanh", 32),
    "april-28": ("leakscope:april-b-28", 28),
    "april-32": ("leakscope:april-b", 32),
}
LEVELS = (20.0, 30.0, 40.0)


def attacks(step_seconds: float, budget: float) -> dict[str, ls.Optimisation]:
    """The contenders; Adam's steps are as many as fit."""
    steps = max(50, int(budget / step_seconds))
    adam = ls.attack("inverting-gradients", steps=steps)
    return {
        "gauss-newton": ls.attack("gauss-newton", steps=100),
        "gauss-newton cg": ls.attack("gauss-newton", steps=100, solver="cg"),
        "signed adam": adam,
        "signed adam, grey": replace(adam, init=EvenGrey()),
        "l-bfgs": ls.attack("idlg", steps=10_000),
        "l-bfgs, grey": ls.attack("idlg", steps=10_000, start="grey"),
        "l-bfgs rel., grey": ls.attack("idlg", steps=10_000, start="grey", relative=True),
    }


def images(given: argparse.Namespace, model: ls.VisionModel) -> Iterator[ls.Batch]:
    """One image at a time, in the model's size and number of channels."""
    channels, size, _ = model.input.shape
    if given.data is None:
        batch = ls.bundled_batch(given.images.split(","), size=size)
    else:
        batch, _ = read_images(given.data, given.count, size=size)
    for picture, label, name in zip(batch.images, batch.labels, batch.names, strict=True):
        pixels = picture.mean(0, keepdim=True) if channels == 1 else picture
        yield ls.Batch(images=pixels[None], labels=label[None], names=(name,))


def psnr(images: torch.Tensor, truth: torch.Tensor) -> float:
    return -10 * math.log10(max(float((images - truth).square().mean()), 1e-20))


class Clock:
    """Seconds of processor time, without what is spent looking; ends an attack when they are up."""

    def __init__(self, truth: torch.Tensor, budget: float) -> None:
        self.truth, self.budget = truth, budget
        self.reached: dict[float, float] = {}
        self.last, self.steps, self.spent, self.mark = -math.inf, 0, 0.0, time.process_time()

    def __call__(self, progress: ls.Progress) -> None:
        self.spent += time.process_time() - self.mark
        self.last, self.steps = psnr(progress.images(), self.truth), progress.step
        for level in LEVELS:
            if self.last >= level:
                self.reached.setdefault(level, self.spent)
        self.mark = time.process_time()
        if self.spent >= self.budget:
            raise KeyboardInterrupt  # the engine's own way to end early and keep what it has


def step_seconds(seen: ls.Observation) -> float:
    """Processor seconds of one signed-Adam step here."""
    attack = ls.attack("inverting-gradients", steps=12)
    marks: list[float] = []
    attack(seen, generator=torch.Generator().manual_seed(0), callback=lambda p: marks.append(time.process_time()))
    return (marks[-1] - marks[1]) / (len(marks) - 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="lenet,mlp,april-28")
    parser.add_argument("--attacks", default="", help="a selection, separated by ';'")
    parser.add_argument("--images", default="cat,coffee", help="bundled images")
    parser.add_argument("--data", type=Path, help="folder or zip of images in ImageFolder layout")
    parser.add_argument("--count", type=int, default=2, help="how many images of --data")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("out/bench/second_order.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for target in given.targets.split(","):
        name, size = TARGETS[target]
        model = ls.load_model(name, num_classes=10, image_size=size, seed=0)
        for batch in images(given, model):
            seen = ls.observe(
                model,
                batch,
                protocol=ls.FedSGD(),
                threat=ls.threats.WITH_LABELS,
                generator=torch.Generator().manual_seed(0),
            )
            for label, attack in attacks(step_seconds(seen), given.seconds).items():
                if given.attacks and label not in given.attacks.split(";"):
                    continue
                clock = Clock(batch.images, given.seconds)
                attack(seen, generator=torch.Generator().manual_seed(1), callback=clock)
                rows.append(
                    {
                        "target": target,
                        "image": batch.names[0],
                        "attack": label,
                        "seconds to": {str(level): clock.reached.get(level) for level in LEVELS},
                        "end": clock.last,
                        "steps": clock.steps,
                        "seconds": clock.spent,
                    }
                )
                until = "  ".join(f"{level:.0f} dB {clock.reached.get(level, math.nan):6.1f} s" for level in LEVELS)
                print(
                    f"{target:9} {rows[-1]['image']!s:12.12} {label:18} {until}   end {clock.last:6.1f} dB "
                    f"({clock.steps} steps, {clock.spent:.0f} s)",
                    flush=True,
                )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
