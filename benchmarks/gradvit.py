"""GradViT's ablation (its Table 2): what each term adds to gradient matching. Prints a table; never fails a build.

    python benchmarks/gradvit.py [--model timm:vit_tiny_patch16_224] [--size 96] [--images cat,coffee] [--steps 400]

Matching and registration first; then the image prior from the first step on; then both schedulers; then patch joints.
TV and l2 are in every row, as in the paper. The images make one batch, the server is told their labels; PSNR, FFT2D
and LPIPS are means over the batch and the seeds. Below stands what a picture of the images' mean colours scores.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

import leakscope as ls
from leakscope.attacks.parts import constant
from leakscope.attacks.terms.image_prior import ImagePrior

METRICS = ["psnr", "ssim", "fft2d", "lpips"]


def rows(steps: int, image: float) -> dict[str, ls.Optimisation]:
    """The attack of each row."""
    made = {
        "matching + registration": ls.attack("gradvit", steps=steps, image=0, patch=0),
        "+ image prior": ls.attack("gradvit", steps=steps, image=image, patch=0),
        "+ schedulers": ls.attack("gradvit", steps=steps, image=image, patch=0),
        "+ patch prior": ls.attack("gradvit", steps=steps, image=image),
    }
    found: dict[str, ls.Optimisation] = {}
    for row, attack in made.items():
        assert isinstance(attack, ls.Optimisation)
        if row in ("matching + registration", "+ image prior"):
            attack = replace(attack, terms=tuple(replace(term, schedule=constant) for term in attack.terms))
        found[row] = attack
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="timm:vit_tiny_patch16_224")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--images", default="cat,coffee")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--image", type=float, default=2e-1, help="the image prior's weight (the paper: 0.2)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = ls.load_model(options.model, num_classes=10, image_size=options.size, seed=0, weights=options.weights)
    batch = ls.bundled_batch(options.images.split(","), size=options.size)
    draw = torch.Generator().manual_seed(0)
    seen = ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=draw)
    for row, attack in rows(options.steps, options.image).items():
        prior = any(isinstance(term.term, ImagePrior) for term in attack.terms)
        began, scores = time.process_time(), []
        for seed in range(options.seeds):
            found = attack(seen, generator=torch.Generator().manual_seed(1 + seed))
            scores.append({name: float(ls.score(found, batch, METRICS)[name].mean()) for name in METRICS})
        means = "  ".join(f"{name} {sum(s[name] for s in scores) / len(scores):.3f}" for name in METRICS)
        print(
            f"{row:<24} {means}  ({time.process_time() - began:.0f} s of CPU{', with the prior' * prior})", flush=True
        )
    flat = batch.images.mean((2, 3), keepdim=True).expand_as(batch.images)
    blank = replace(found, images=flat.contiguous(), labels=batch.labels)
    means = "  ".join(f"{name} {float(ls.score(blank, batch, METRICS)[name].mean()):.3f}" for name in METRICS)
    print(f"{'each image in its mean':<24} {means}")


if __name__ == "__main__":
    main()
