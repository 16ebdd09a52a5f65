"""Gradient inversion on YOLOv8-nano and its two simplified variants: the feasibility study's Figure 5, at small scale.

    python benchmarks/detection.py [--size 256] [--epochs 50] [--steps 300] [--images cat] [--control] [--out FOLDER]
        [--search pixels] [--tv 1e-3] [--bn 0.1]

Every variant is first trained for a while on bundled photographs that are not attacked, with boxes written by hand, so
that its running statistics mean something; COCO weights are not to be had here. Prints how far the loss fell, seconds
per step, and SSIM and PSNR of what came back, beside the best single grey of each image. The attack is ``train-mode``;
with ``--search pixels`` the study's own, ``feasibility``, from grey.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

import leakscope as ls
from leakscope.audit.labelled import Labelled
from leakscope.audit.run import Case, invert
from leakscope.audit.training import TrainingPlan, pixels, train_epoch
from leakscope.functional.boxes import stack_boxes
from leakscope.metrics import METRICS
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.testing.bundled import bundled_images

BOXES = {
    "astronaut": [[0, 0.47, 0.52, 0.9, 0.96]],
    "cat": [[15, 0.5, 0.52, 0.9, 0.94]],
    "coffee": [[41, 0.5, 0.5, 0.62, 0.62], [44, 0.75, 0.75, 0.4, 0.2]],
    "raccoon": [[16, 0.5, 0.5, 0.9, 0.94]],
    "flower": [[58, 0.5, 0.5, 0.8, 0.8]],
    "stairs": [[0, 0.5, 0.4, 0.2, 0.4], [0, 0.3, 0.7, 0.2, 0.4]],
    "camera": [[0, 0.4, 0.6, 0.5, 0.76]],
    "temple": [[13, 0.5, 0.5, 0.5, 0.9]],
}
"""Class (COCO's numbers), centre and size of what is seen, written by hand."""

CONDITIONS = ("yolov8n/train", "yolov8n-preact/train", "yolov8n-basic/eval", "yolov8n/eval")
"""The study's three, and the unmodified network in inference mode, which its text names."""


def middle(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Grey, slightly disturbed: N(0, 1) would be black and white noise in YOLO's range of pixels, [0, 1]."""
    return 0.5 + 0.05 * torch.randn(shape, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=50, help="of training on the other photographs")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--images", default="cat")
    parser.add_argument("--search", choices=["frequency", "pixels"], default="frequency")
    parser.add_argument("--tv", type=float, default=1e-3)
    parser.add_argument("--bn", type=float, default=0.1, help="of statistics, in train mode; pixels: 1.6e-4")
    parser.add_argument("--lr", type=float, default=0.02, help="YOLO's inputs span 1, not 4.5 as normalised ones do")
    parser.add_argument("--conditions", default=",".join(CONDITIONS), help="variant/mode, with commas between")
    parser.add_argument("--control", action="store_true", help="attack noise in place of the update, as well")
    parser.add_argument("--out", type=Path, default=Path("out/detection"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    attacked = given.images.split(",")
    models: dict[str, VisionModel] = {}
    for name, _, mode in (condition.partition("/") for condition in given.conditions.split(",")):
        if name not in models:
            models[name] = trained(name, given.size, given.epochs, [n for n in BOXES if n not in attacked])
        for image in attacked:
            for control in (False, True) if given.control else (False,):
                attack_one(models[name], mode, image, given, control=control)


def trained(name: str, size: int, epochs: int, names: list[str]) -> VisionModel:
    """The variant after some training on ``names``."""
    model = ls.load_model(f"leakscope:{name}", image_size=size, seed=0)
    data = Labelled(images=bundled_images(names, size), labels=stack_boxes([torch.tensor(BOXES[n]) for n in names]))
    plan = TrainingPlan(epochs=epochs, batch_size=3, optimiser="adamw")
    optimiser, root, began = plan.build(model), torch.Generator().manual_seed(0), time.process_time()
    losses = [
        train_epoch(
            model,
            data,
            optimiser,
            batch_size=plan.batch_size,
            generator=fork(root, f"epoch/{number}"),
            rate=lambda share, number=number: plan.rate_at((number + share) / epochs),
        )
        for number in range(epochs)
    ]
    spent = time.process_time() - began
    with torch.no_grad():
        inferred = float(model.loss(model(pixels(data.images, model)), data.labels))
    print(
        f"{name}: {epochs} epochs of {len(names)} images at {size} px: loss {losses[0]:.2f} to {losses[-1]:.2f} "
        f"({inferred:.2f} in evaluation mode), {spent / epochs / -(-len(names) // 3):.2f} s of CPU per step of 3",
        flush=True,
    )
    return model


def attack_one(model: VisionModel, mode: str, image: str, given: argparse.Namespace, *, control: bool) -> None:
    """One image, batch size one, boxes known, statistics shared where there are any."""
    batch = ls.Batch(
        images=bundled_images([image], given.size), labels=stack_boxes([torch.tensor(BOXES[image])]), names=(image,)
    )
    # In inference mode none: the running statistics of seven photographs say nothing of another.
    options = {"steps": given.steps, "tv": given.tv, "lr": given.lr, "bn": given.bn if mode == "train" else 0.0}
    name = "train-mode" if given.search == "frequency" else "feasibility"
    attack = ls.attack(name, **options)
    case = Case(
        model=model,
        batch=batch,
        client=ls.FedSGD(mode=mode, share_buffers=mode == "train"),
        threat=ls.threats.WITH_STATISTICS,
        attack_name=name,
        attack=attack if given.search == "frequency" else replace(attack, init=middle),
        control=control,
    )
    folder = given.out / f"{model.name.partition(':')[2]}-{mode}-{image}{'-control' if control else ''}"
    began = time.process_time()
    record = invert(case, folder, fresh=True).record
    spent = time.process_time() - began
    grey = batch.images.mean((1, 2, 3), keepdim=True).expand_as(batch.images)
    flat = float(METRICS["ssim"].value(grey, batch.images))
    scores = {key: (record.metric(key) or [float("nan")])[0] for key in ("ssim", "psnr")}
    print(
        f"{model.name} {mode} {image}{' CONTROL' if control else ''}: SSIM {scores['ssim']:.3f} (grey {flat:.3f}), "
        f"PSNR {scores['psnr']:.2f}, loss {record.trace[0][0]:.4f} to {record.energy:.4f}, {record.evidence}, "
        f"{spent / given.steps:.2f} s of CPU per step",
        flush=True,
    )


if __name__ == "__main__":
    main()
