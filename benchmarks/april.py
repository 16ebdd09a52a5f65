"""APRIL's Table 1: four attacks on Architecture B, image by image. Prints a table; never fails a build.

    python benchmarks/april.py --data t10k-images-idx3-ubyte.gz [--images 20] [--steps 300] [--position-std 1]
    python benchmarks/april.py --data cifar10.zip

The data are MNIST's test file, or a folder or zip of class folders. As in the paper, all four take Adam and as many
steps; the label is inferred (DLG finds it along with the image). The paper gives neither rates, nor α, nor initial
weights. Each attack has the rate, of those tried, that served it best on the image after the last (``--sweep`` prints
that). MSE and SSIM are of pixels in [0, 1]; MSE is also given in units of the normalised input.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import leakscope as ls
from _peer_images import read_images
from leakscope.attacks.parts import adam, cosine_decay

RATES = {
    "leakscope:april-b-28": {"april": 1.0, "dlg": 1.0, "inverting-gradients": 0.1, "tag": 0.1},
    "leakscope:april-b": {"april": 1.0, "dlg": 1.0, "inverting-gradients": 0.1, "tag": 1.0},
}
ATTACKS = ("april", "dlg", "inverting-gradients", "tag")


def attack(name: str, steps: int, lr: float, alpha: float) -> ls.Optimisation:
    """The attack, with the optimiser that the paper gave to all of them; Inverting Gradients keeps its own."""
    own = {"april": {"alpha": alpha}, "inverting-gradients": {"lr": lr}}
    made = ls.attack(name, steps=steps, **own.get(name, {}))
    assert isinstance(made, ls.Optimisation)
    return made if name == "inverting-gradients" else replace(made, optimiser=adam(lr), schedule=cosine_decay)


def images(data: Path, count: int) -> tuple[str, list[ls.Batch]]:
    """The model that fits, and ``count`` images, one batch each."""
    if "idx3" in data.name:
        with gzip.open(data) as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)[:count]
        with gzip.open(data.with_name(data.name.replace("images-idx3", "labels-idx1"))) as file:
            labels = np.frombuffer(file.read(), np.uint8, offset=8)[:count]
        digits = torch.from_numpy(pixels.astype(np.float32) / 255)
        made = [(p, int(n), f"digit {n}") for p, n in zip(digits, labels, strict=True)]
        name = "leakscope:april-b-28"
    else:
        batch, _ = read_images(data, count, size=32)
        made = [(p, int(n), name) for p, n, name in zip(batch.images, batch.labels, batch.names, strict=True)]
        name = "leakscope:april-b"
    return name, [ls.Batch(images=p[None], labels=torch.tensor([n]), names=(called,)) for p, n, called in made]


def run(
    seen: ls.Observation, batch: ls.Batch, name: str, steps: int, lr: float, alpha: float
) -> tuple[dict[str, float], torch.Tensor]:
    began = time.process_time()
    found = attack(name, steps, lr, alpha)(seen, generator=torch.Generator().manual_seed(1))
    seconds = time.process_time() - began
    spread = (seen.model.normalise(found.images) - seen.model.normalise(batch.images)).square().mean()
    scores = {key: float(value.mean()) for key, value in ls.score(found, batch, ["mse", "ssim"]).items()}
    return {**scores, "mse, normalised": float(spread), "seconds": seconds}, found.images[0]


def save_picture(columns: list[list[torch.Tensor]], path: Path) -> None:
    """One column for each image: the original on top, below it what each attack brought back."""
    rows = [torch.cat([pad(picture) for picture in row], dim=2) for row in zip(*columns, strict=True)]
    pixels = (torch.cat(rows, dim=1).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).expand(-1, -1, 3).numpy()
    height, width = pixels.shape[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.copy()).resize((2 * width, 2 * height), Image.Resampling.NEAREST).save(path)


def pad(picture: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(picture, (1, 1, 1, 1), value=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--position-std", type=float, default=1.0)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--alpha", type=float, default=100.0, help="of april, which the paper does not give")
    parser.add_argument("--sweep", default="", help="rates to try on the image after the last, separated by ','")
    parser.add_argument("--out", type=Path, default=Path("out/bench/april.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    name, batches = images(given.data, given.images + 1)
    model = ls.load_model(f"{name}?position_std={given.position_std}", num_classes=10, seed=0)
    rates = {n: [RATES[name][n]] for n in given.attacks.split(",")}
    if given.sweep:
        batches, rates = batches[-1:], {n: [float(r) for r in given.sweep.split(",")] for n in rates}
    else:
        batches = batches[:-1]
    rows: list[dict[str, object]] = []
    columns: list[list[torch.Tensor]] = []
    for batch in batches:
        columns.append([batch.images[0]])
        draw = torch.Generator().manual_seed(0)
        seen = ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.HONEST_SERVER, generator=draw)
        for called, tried in rates.items():
            for lr in tried:
                scores, picture = run(seen, batch, called, given.steps, lr, given.alpha)
                columns[-1].append(picture)
                rows.append({"image": batch.names[0], "attack": called, "lr": lr, **scores})
                print("  ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in rows[-1].values()), flush=True)
    print(f"\n{name}, position_std {given.position_std}, {len(batches)} images, {given.steps} steps")
    for called, tried in rates.items():
        for lr in tried:
            mine = [row for row in rows if row["attack"] == called and row["lr"] == lr]
            middle = {
                k: np.array([float(str(row[k])) for row in mine]) for k in ("mse", "mse, normalised", "ssim", "seconds")
            }
            print(
                f"{called:<20} lr {lr:<5g} "
                + "  ".join(
                    f"{k} {v.mean():.2e} (median {np.median(v):.2e}, worst {v.max() if k != 'ssim' else v.min():.2e})"
                    for k, v in middle.items()
                )
            )
    save_picture(columns, given.out.with_suffix(".png"))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
