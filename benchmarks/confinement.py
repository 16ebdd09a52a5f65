"""What confinement adds to gradient matching on batches of a vision transformer, and what separation makes of the same.

    python benchmarks/confinement.py [--model leakscope:april-b] [--size 32] [--batches 2,3,4] [--steps 40]

The same recipes over the same steps, once in pixels and once in the space that the gradients of patch embedding and
position table leave (`leakscope.attacks.separation.confinement`): L-BFGS on the squared distance with known labels, and
Inverting Gradients (cosine, total variation, signed Adam; ten times the steps). Then `token-separation`.
One line for each: PSNR of every image, the loss at the end, seconds.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch

import leakscope as ls
from leakscope.attacks.parts import lbfgs
from leakscope.attacks.separation.confinement import confine
from leakscope.attacks.terms import Match, Weighted
from leakscope.functional.distances import squared_l2

NAMES = ("astronaut", "cat", "coffee", "flower", "temple", "raccoon")


def report(what: str, attack: ls.Attack, seen: ls.Observation, batch: ls.Batch) -> None:
    began = time.perf_counter()
    try:
        found = attack(seen, generator=torch.Generator().manual_seed(1))
    except ls.NotApplicable as reason:
        print(f"  {what:<34} refused: {reason}")
        return
    psnr = " ".join(f"{float(value):6.1f}" for value in ls.score(found, batch)["psnr"])
    print(f"  {what:<34} PSNR {psnr}   loss {found.energy:8.1e}   {time.perf_counter() - began:6.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="leakscope:april-b")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batches", default="2,3,4")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = ls.load_model(options.model, num_classes=10, image_size=options.size, seed=0)
    matching = ls.Optimisation(
        terms=(Weighted(term=Match(squared_l2)),), optimiser=lbfgs(line_search=True), steps=options.steps
    )
    inverting = ls.attack("inverting-gradients", steps=10 * options.steps)
    assert isinstance(inverting, ls.Optimisation)
    for size in map(int, options.batches.split(",")):
        batch = ls.bundled_batch(list(NAMES[:size]), size=options.size)
        draw = torch.Generator().manual_seed(0)
        seen = ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=draw)
        space = confine(seen)
        miss = space.miss(model.normalise(batch.images.to(model.dtype)))
        print(
            f"{options.model}, {size} images: {space.directions.shape[0]} of {space.directions.shape[1]} dimensions ",
            end="",
        )
        print(f"are left to each patch; the true images are outside by {miss:.1e}")
        report("L-BFGS, pixels", matching, seen, batch)
        report("L-BFGS, confined", replace(matching, decode=confine), seen, batch)
        report("Inverting Gradients, pixels", inverting, seen, batch)
        report("Inverting Gradients, confined", replace(inverting, decode=confine), seen, batch)
        report("token-separation", ls.attack("token-separation"), seen, batch)


if __name__ == "__main__":
    main()
