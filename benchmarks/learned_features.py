"""Split features: divide-and-conquer inversion by cut, its references, and images of 224 px.

    python benchmarks/learned_features.py cuts --data cifar10.zip --weights cifar10-resnet20.safetensors
        [--cuts relu,layer1,layer2,layer3] [--pairs 10000] [--free 1024] [--leaves 4096] [--picture FILE]
    python benchmarks/learned_features.py large --data imagenet-samples.zip [--cuts bn1,blocks.0] [--free 64]
    python benchmarks/learned_features.py memory [--model torchvision:resnet50] [--cuts layer2]

``cuts``: a trained CIFAR-10 ResNet-20. dci on public images, dci on images made up from the model and dead leaves (once
for all cuts), the single decoder for at least dci's time, and feature matching through the engine on the first test
images. ``--only data-free`` leaves out all but the fits on made-up images.
``large``: EfficientNet-Lite0 with its ImageNet weights at 224 px; the picture is of bundled photographs.
``memory``: a few steps of dci on an untrained model at 224 px.
One thread; times are CPU times; scores are means over test images, which no fit has seen.
"""

from __future__ import annotations

import argparse
import io
import resource
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import leakscope as ls
from _learned import cifar, matched, say, scores, seeded, sheet, some, within
from leakscope.attacks.learned.inverter import Inverter
from leakscope.attacks.learned.learned import LearnedAttack
from leakscope.attacks.learned.pairs import replay_many
from leakscope.attacks.learned.synthesis import Synthesis
from leakscope.models.image_prior import load_image_prior

PHOTOGRAPHS = ["astronaut", "cat", "coffee", "temple"]
"""Bundled ones, which may be shown."""


def fit(
    public: ls.Batch, cut: str, model: ls.VisionModel, test: ls.Batch, label: str, **options: object
) -> tuple[Inverter, Tensor, float]:
    """dci with these options: the inverter, what it makes of the test images, and the minutes it took."""
    method = ls.attack("dci", **options)
    assert isinstance(method, LearnedAttack)
    began = time.process_time()
    inverter = method.fit(public, ls.Split(cut=cut), model=model, generator=seeded(1))
    took = time.process_time() - began
    return inverter, judged(inverter, cut, model, test, f"{label}, fit {took:.0f} s"), took / 60


def judged(inverter: Inverter, cut: str, model: ls.VisionModel, test: ls.Batch, label: str) -> Tensor:
    """What it makes of the test images, scored and timed one by one."""
    made, spent = [], 0.0
    for image, kind in zip(test.images, test.labels, strict=True):
        signal = replay_many(
            model, image[None, None], kind[None, None], protocol=ls.Split(cut=cut), generator=seeded(2)
        )
        began = time.process_time()
        made.append(inverter.images(signal)[:, 0])
        spent += time.process_time() - began
    say(f"{cut}: {label}", scores(torch.cat(made), test), f"{1000 * spent / len(test):.1f} ms an image")
    return torch.cat(made)


def invented(model: ls.VisionModel, count: int, leaves: int, steps: int, batch: int) -> ls.Batch:
    """Images made up from the model, and dead leaves; those of an earlier call are taken from disk."""
    kept = Path(f"out/learned/made-up-{model.name.partition(':')[2]}-{count}-{leaves}-{steps}.safetensors")
    if kept.exists():
        return ls.Batch(**load_file(kept))
    began = time.process_time()
    made = Synthesis(count=count, leaves=leaves, steps=steps, batch=batch)(model, generator=seeded(4))
    took = time.process_time() - began
    print(f"{count} images made up ({steps} steps) and {leaves} leaves drawn in {took:.0f} s", flush=True)
    kept.parent.mkdir(parents=True, exist_ok=True)
    save_file({"images": made.images, "labels": made.labels}, kept)
    return made


def cuts(options: argparse.Namespace) -> None:
    model = ls.load_model("leakscope:resnet20", num_classes=10, image_size=32, weights=options.weights, seed=0)
    public, test = cifar(options.data, "train", options.pairs), cifar(options.data, "test", options.images)
    say("mean image", scores(public.images.mean(0).expand_as(test.images), test))
    few = some(test, options.few)
    shown: dict[str, dict[str, Tensor]] = {}
    for cut in options.cuts.split(","):
        rows = shown.setdefault(cut, {"originals": few.images})
        if options.only == "data-free":
            continue
        _, made, minutes = fit(public, cut, model, test, "dci", steps=options.steps)
        rows["dci"] = made[: len(few)]
        single = within("decoder", 1.15 * minutes, public, model, ls.Split(cut=cut), few=60)
        rows["decoder"] = judged(single, cut, model, test, "decoder")[: len(few)]
        say(f"{cut}: dci, the first {len(few)}", scores(rows["dci"], few))
        rows["matching"] = matched(
            "inverting-gradients", model, few, options.matching, protocol=ls.Split(cut=cut), tv=options.tv
        )
    if options.free + options.leaves:
        free = invented(model, options.free, options.leaves, options.synthesis_steps, 32)
        for cut, rows in shown.items():
            _, made, _ = fit(free, cut, model, test, "dci, data-free", steps=options.steps)
            rows["data-free"] = made[: len(few)]
    if options.picture:
        sheet(shown, options.picture)


def samples(path: Path, size: int) -> ls.Batch:
    """Every picture of a zip, cropped to its middle, in an order of its own; no label plays a part."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".JPEG", ".png")))
        pixels = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names]
    images = torch.stack([torch.from_numpy(one).permute(2, 0, 1) for one in pixels]).float() / 255
    edge = (images.shape[-1] - size) // 2
    order = torch.randperm(len(images), generator=seeded(0))
    return ls.Batch(
        images=images[order, :, edge : edge + size, edge : edge + size], labels=torch.zeros(len(images)).long()
    )


def large(options: argparse.Namespace) -> None:
    model = ls.load_model("timm:tf_efficientnet_lite0", image_size=224, seed=0)
    model.module.load_state_dict(load_image_prior().module.state_dict())
    everything = samples(options.data, 224)
    test = some(everything, options.images)
    public = ls.Batch(images=everything.images[options.images :], labels=everything.labels[options.images :])
    say("mean image", scores(public.images.mean(0).expand_as(test.images), test))
    photographs = ls.bundled_batch(PHOTOGRAPHS, size=224)
    wanted = options.free + options.leaves
    free = invented(model, options.free, options.leaves, options.synthesis_steps, 8) if wanted else None
    shown: dict[str, dict[str, Tensor]] = {}
    for cut in options.cuts.split(","):
        rows = shown.setdefault(cut, {"originals": photographs.images})
        for label, images in (("dci", public), ("data-free", free)):
            if images is not None and options.only in (None, label):
                inverter, _, _ = fit(images, cut, model, test, label, steps=options.steps, batch=4)
                rows[label] = judged(inverter, cut, model, photographs, f"{label}, {len(photographs)} photographs")
        print(f"peak {peak():.1f} GiB", flush=True)
    if options.picture:
        sheet(shown, options.picture)


def memory(options: argparse.Namespace) -> None:
    model = ls.load_model(options.model, num_classes=1000, image_size=224, seed=0)
    images = torch.rand(64, 3, 224, 224, generator=seeded(0))
    public = ls.Batch(images=images, labels=torch.zeros(64).long())
    for cut in options.cuts.split(","):
        inverter, _, minutes = fit(public, cut, model, some(public, 2), "dci", steps=options.steps)
        stages = list(dict.fromkeys(row[0] for row in inverter.trace))
        print(f"{options.model}, {cut}: {len(stages)} stages, {60 * minutes:.0f} s, peak {peak():.1f} GiB", flush=True)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cuts", "large", "memory"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", default="torchvision:resnet18")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=50, help="how many test images")
    parser.add_argument("--few", type=int, default=5, help="how many of them are matched and shown")
    parser.add_argument("--steps", type=int, default=1000, help="of dci")
    parser.add_argument("--matching", type=int, default=1000, help="steps of feature matching")
    parser.add_argument("--tv", type=float, default=1e-2, help="total variation of feature matching")
    parser.add_argument("--cuts", default="relu,layer1,layer2,layer3")
    parser.add_argument("--free", type=int, default=0, help="images to make up, for the data-free fits")
    parser.add_argument("--leaves", type=int, default=0, help="dead leaves to draw, for the data-free fits")
    parser.add_argument("--only", choices=["data-free"], help="leave out everything else")
    parser.add_argument("--synthesis-steps", type=int, default=200)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    {"cuts": cuts, "large": large, "memory": memory}[options.what](options)


if __name__ == "__main__":
    main()
