"""GradViT's tables: what each term adds to gradient matching, and which gradients matter. Never fails a build.

    python benchmarks/gradvit.py terms [--model timm:vit_tiny_patch16_224] [--size 96] [--images cat,coffee]
    python benchmarks/gradvit.py parts [--model …] [--weights FILE] [--size 224] [--images cat] [--steps 40]

``terms`` is its Table 2. Matching and registration first; then the image prior from the first step on; then both
schedulers; then patch joints. TV and l2 are in every row, as in the paper.

``parts`` is its Tables 4 and 5: everything, without a third of the blocks, attention alone, MLP alone; matching with
TV, l2 and patch joints, one member. The studies ``layers`` and ``components`` show more parts, for any model.

The images make one batch (``--alone``: each its own), the server is told their labels; PSNR, FFT2D and LPIPS are means
over images and seeds. Below stands what a picture of the images' mean colours scores.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

import leakscope as ls
from leakscope.attacks.parts import constant
from leakscope.attacks.terms.image_prior import ImagePrior
from leakscope.audit.studies.components import kinds
from leakscope.audit.studies.layers import thirds

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


def parts(model: ls.VisionModel) -> dict[str, tuple[str, ...]]:
    """What is withheld in each row of Tables 4 and 5."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    blocks = {part: members for part, members in thirds(model).items() if part.startswith("block")}
    kind = kinds(model)
    alone = {f"only {part}": [n for n in names if n not in set(kind[part])] for part in ("MLP", "attention")}
    without = {f"without {part}": members for part, members in blocks.items()}
    return {"everything": (), **{row: tuple(members) for row, members in {**without, **alone}.items()}}


def batches(options: argparse.Namespace) -> list[ls.Batch]:
    batch = ls.bundled_batch(options.images.split(","), size=options.size)
    if not options.alone:
        return [batch]
    whole = zip(batch.images, batch.labels, batch.names, strict=True)
    return [ls.Batch(images=image[None], labels=label[None], names=(name,)) for image, label, name in whole]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["terms", "parts"])
    parser.add_argument("--model", default="timm:vit_tiny_patch16_224")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--images", default="cat,coffee")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--image", type=float, default=2e-1, help="the image prior's weight (the paper: 0.2)")
    parser.add_argument("--lr", type=float, default=0.1, help="of parts")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/bench/gradvit"), help="folder for the pictures")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = ls.load_model(options.model, num_classes=10, image_size=options.size, seed=0, weights=options.weights)
    every = batches(options)
    if options.what == "terms":
        runs = {row: (attack, ()) for row, attack in rows(options.steps, options.image).items()}
    else:
        alone = ls.attack("gradvit", steps=options.steps, lr=options.lr, image=0, group=0, population=1)
        assert isinstance(alone, ls.Optimisation)
        runs = {row: (alone, withheld) for row, withheld in parts(model).items()}
    for row, (attack, withheld) in runs.items():
        prior = any(isinstance(term.term, ImagePrior) for term in attack.terms)
        began, scores = time.process_time(), []
        for batch in every:
            seen = observed(model, batch, withheld)
            for seed in range(options.seeds):
                found = attack(seen, generator=torch.Generator().manual_seed(1 + seed))
                scores.append({name: float(ls.score(found, batch, METRICS)[name].mean()) for name in METRICS})
                save(found.images, options.out, f"{row} {'-'.join(batch.names)} {seed}")
        say(row, scores, f"({time.process_time() - began:.0f} s of CPU{', with the prior' * prior})")
    blanks = []
    for batch in every:
        flat = batch.images.mean((2, 3), keepdim=True).expand_as(batch.images)
        done = ls.Outcome(status=ls.Status.FINISHED, message="")
        blank = ls.Reconstruction(images=flat.contiguous(), labels=batch.labels, energy=0, outcome=done)
        blanks.append({name: float(ls.score(blank, batch, METRICS)[name].mean()) for name in METRICS})
    say("each image in its mean", blanks)


def observed(model: ls.VisionModel, batch: ls.Batch, withheld: tuple[str, ...]) -> ls.Observation:
    return ls.observe(
        model,
        batch,
        protocol=ls.FedSGD(),
        defences=(ls.defence("withhold", what=withheld),) if withheld else (),
        threat=ls.threats.WITH_LABELS.plus(ls.Knows.DEFENCE),
        generator=torch.Generator().manual_seed(0),
    )


def say(row: str, scores: list[dict[str, float]], more: str = "") -> None:
    means = "  ".join(f"{name} {sum(s[name] for s in scores) / len(scores):.3f}" for name in METRICS)
    print(f"{row:<24} {means}  {more}", flush=True)


def save(images: torch.Tensor, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (torch.cat(list(images), dim=2).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(folder / f"{name.replace('/', '-')}.png")


if __name__ == "__main__":
    main()
