"""Do the fast and the exact gradient end in the same pictures? The same attack with both, image by image.

    python benchmarks/gradients.py [--data cifar10.zip] [--model resnet18] [--images 10] [--steps 200] [--threads 1]

Both start from the same noise. A difference of the means well below the scatter between images says that nothing is
lost with the fast gradient.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

import leakscope as ls
from _peer_images import read_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder or zip of images; by default the bundled photographs")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/bench/gradients.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    model = ls.load_model(f"leakscope:{given.model}", num_classes=10, seed=0)
    found: dict[str, list[float]] = {"exact": [], "fast": []}
    seconds = {"exact": 0.0, "fast": 0.0}
    images, _ = read_images(given.data, given.images, size=32)
    for pixels, label, name in zip(images.images, images.labels, images.names, strict=True):
        batch = ls.Batch(images=pixels[None], labels=label[None])
        seen = ls.observe(
            model,
            batch,
            protocol=ls.FedSGD(),
            threat=ls.threats.WITH_LABELS,
            generator=torch.Generator().manual_seed(0),
        )
        for way in found:
            attack = ls.attack("inverting-gradients", steps=given.steps, gradient=way)
            rec = attack(seen, generator=torch.Generator().manual_seed(1))
            found[way].append(float(ls.score(rec, batch, ["psnr"])["psnr"]))
            seconds[way] += rec.seconds
        print(f"{name:20} exact {found['exact'][-1]:6.2f} dB   fast {found['fast'][-1]:6.2f} dB", flush=True)
    gaps = [f - e for f, e in zip(found["fast"], found["exact"], strict=True)]
    print(
        f"mean: exact {statistics.mean(found['exact']):.2f} dB, fast {statistics.mean(found['fast']):.2f} dB, "
        f"fast − exact {statistics.mean(gaps):+.2f} ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.2f} dB (standard "
        f"error), time ×{seconds['fast'] / seconds['exact']:.2f}"
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"psnr": found, "seconds": seconds}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
