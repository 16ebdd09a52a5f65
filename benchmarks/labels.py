"""How many labels each rule reads off the classifier's gradient, over batch sizes and models, trained and untrained.

    python benchmarks/labels.py [--data cifar10.zip] [--weights leakscope:resnet20=cifar10-resnet20.safetensors]

Labels are drawn with the images, so they repeat as chance has it. A rule that refuses a batch (iDLG above one image,
the minimum rule above the number of classes) is shown as "–". Accuracy is the share of the batch's labels found, as
multisets: order does not matter, repeats do; in brackets the share of batches without an error. The client is in
evaluation mode unless ``--mode train`` is given. Without ``--data`` the bundled photographs serve, with random labels.
"""

from __future__ import annotations

import argparse
import io
import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

import leakscope as ls
from leakscope.attacks.labels import LABEL_RULES
from leakscope.functional.labels import label_accuracy

MODELS = (
    "leakscope:lenet-dlg,leakscope:convnet64,leakscope:resnet18,leakscope:resnet20,leakscope:april-b,"
    "timm:vit_tiny_patch16_224"
)
SIZES = "1,2,4,8,16,32,64"
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp"}

Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def from_data(path: Path, pixels: int) -> tuple[Draw, int]:
    """Random images with their classes from a folder or zip laid out as …/<class>/<image>; ``test`` is preferred."""
    if path.is_dir():
        read = {str(p.relative_to(path).as_posix()): p.read_bytes for p in path.rglob("*")}
    else:
        archive = zipfile.ZipFile(path)
        read = {name: (lambda name=name: archive.read(name)) for name in archive.namelist()}
    names = sorted(name for name in read if PurePosixPath(name).suffix.lower() in SUFFIXES)
    names = [name for name in names if "test" in PurePosixPath(name).parts] or names
    classes = sorted({PurePosixPath(name).parent.name for name in names})

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = [names[i] for i in torch.randint(len(names), (count,), generator=generator).tolist()]
        labels = torch.tensor([classes.index(PurePosixPath(name).parent.name) for name in chosen])
        return torch.stack([decode(read[name](), pixels) for name in chosen]), labels

    return draw, len(classes)


def decode(data: bytes, pixels: int) -> Tensor:
    with Image.open(io.BytesIO(data)) as picture:
        fitted = ImageOps.fit(picture.convert("RGB"), (pixels, pixels), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(fitted)).permute(2, 0, 1).float() / 255


def bundled(pixels: int) -> tuple[Draw, int]:
    """The bundled photographs in random order and number, with labels drawn uniformly out of ten."""
    images = ls.bundled_batch(size=pixels).images

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        which = torch.randint(len(images), (count,), generator=generator)
        return images[which], torch.randint(10, (count,), generator=generator)

    return draw, 10


def measure(model: ls.VisionModel, draw: Draw, size: int, batches: int, mode: str) -> dict[str, dict[str, float]]:
    """Mean accuracy, and the share of batches without an error, for every rule that does not refuse."""
    found: dict[str, list[float]] = {}
    for index in range(batches):
        images, labels = draw(size, torch.Generator().manual_seed(1000 * size + index))
        seen = ls.observe(
            model,
            ls.Batch(images=images, labels=labels),
            protocol=ls.FedSGD(mode=mode),
            generator=torch.Generator().manual_seed(index),
        )
        for rule in LABEL_RULES:
            try:
                guess = ls.recover_labels(seen, rule)
            except ls.NotApplicable:
                continue
            found.setdefault(rule, []).append(label_accuracy(guess, labels, model.input.num_classes))
    return {
        rule: {"accuracy": sum(each) / len(each), "all": sum(a == 1 for a in each) / len(each)}
        for rule, each in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder or zip of images, …/<class>/<image>")
    parser.add_argument("--models", default=MODELS, help="names separated by commas")
    parser.add_argument("--weights", action="append", default=[], metavar="MODEL=FILE", help="adds a trained row")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--batches", type=int, default=20, help="random batches for each size")
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--mode", choices=["eval", "train"], default="eval")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/bench/labels.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    draw, classes = bundled(given.pixels) if given.data is None else from_data(given.data, given.pixels)
    cases: list[tuple[str, str, str | None]] = [(name, name, None) for name in given.models.split(",") if name]
    for pair in given.weights:
        name, _, file = pair.rpartition("=")
        cases.append((f"{name} (trained)", name, file))
    sizes = [int(size) for size in given.sizes.split(",")]

    rows: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    print("| model | rule | " + " | ".join(f"B={size}" for size in sizes) + " |")
    print("| --- | --- |" + " ---: |" * len(sizes))
    for title, name, file in cases:
        model = ls.load_model(name, num_classes=classes, image_size=given.pixels, seed=0, weights=file)
        started = time.perf_counter()
        by_size = {size: measure(model, draw, size, given.batches, given.mode) for size in sizes}
        rows[title] = {str(size): by_size[size] for size in sizes}
        for rule in LABEL_RULES:
            cells = [cell(by_size[size].get(rule)) for size in sizes]
            print(f"| {title} | {rule} | " + " | ".join(cells) + " |", flush=True)
        rows[title]["seconds"] = {"all": {"wall": time.perf_counter() - started}}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {key: str(value) for key, value in vars(given).items()}
    given.out.write_text(json.dumps({"settings": settings, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    print(f"\nfigures: {given.out}")


def cell(found: dict[str, float] | None) -> str:
    return "–" if found is None else f"{100 * found['accuracy']:.1f} ({100 * found['all']:.0f})"


if __name__ == "__main__":
    main()
