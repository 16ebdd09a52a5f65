"""What the benchmarks of learned attacks share: images, scores, fits of a given length, optimisation beside them."""

from __future__ import annotations

import io
import math
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional as F

import leakscope as ls
from leakscope.attacks.learned.inverter import Inverter
from leakscope.attacks.learned.learned import LearnedAttack

METRICS = ["mse", "psnr", "ssim", "lpips"]
TILE = 48


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cifar(path: Path, part: str, count: int, seed: int = 0) -> ls.Batch:
    """``count`` images of CIFAR-10's ``part`` (train, test), drawn from the zip of image folders."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        classes = sorted({name.split("/")[-2] for name in names})
        own = [name for name in names if name.split("/")[-3] == part]
        picked = [own[i] for i in torch.randperm(len(own), generator=seeded(seed))[:count].tolist()]
        pixels = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in picked]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    return ls.Batch(images=images, labels=torch.tensor([classes.index(name.split("/")[-2]) for name in picked]))


def scores(images: Tensor, truth: ls.Batch) -> dict[str, float]:
    """Means over images, each scored by itself."""
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    outcome = ls.Outcome(status=ls.Status.FINISHED, message="")
    for index in range(len(truth)):
        one = ls.Batch(images=truth.images[index : index + 1], labels=truth.labels[index : index + 1])
        made = ls.Reconstruction(
            images=images[index : index + 1].clamp(0, 1), labels=one.labels, energy=0, outcome=outcome
        )
        for name in METRICS:
            values[name].append(float(ls.score(made, one, [name])[name][0]))
    return {name: sum(found) / len(found) for name, found in values.items()}


def say(what: str, found: Mapping[str, float], more: str = "") -> None:
    means = f"MSE {found['mse']:.5f}  PSNR {found['psnr']:6.2f}  SSIM {found['ssim']:.3f}  LPIPS {found['lpips']:.4f}"
    print(f"{what:<34} {means}  {more}", flush=True)


def within(
    name: str,
    minutes: float,
    public: ls.Batch,
    model: ls.VisionModel,
    protocol: ls.ClientProtocol,
    defences: tuple[ls.Defence, ...] = (),
    steps: int | None = None,
    few: int = 6,
    **options: object,
) -> Inverter:
    """Fit ``name`` for about ``minutes`` of CPU time, replays and closed-form starts included; or for ``steps``.

    ``few`` steps are timed first.
    """
    began = time.process_time()
    marks: list[float] = []

    def watch(progress: ls.Progress) -> None:
        marks.append(time.process_time() - began)

    def fit(steps: int) -> Inverter:
        made = ls.attack(name, steps=steps, cache=Path("out/learned-cache"), **options)
        assert isinstance(made, LearnedAttack)
        return made.fit(public, protocol, model=model, defences=defences, generator=seeded(1), callback=watch)

    each = math.nan
    if steps is None:
        fit(few)
        each = (marks[few - 1] - marks[few // 3]) / (few - 1 - few // 3)
        steps = max(few, int((60 * minutes - marks[0]) / each))
        began = time.process_time()
    inverter = fit(steps)
    spent = time.process_time() - began
    measured = [row[3] for row in inverter.trace]
    print(
        f"  {name}: {steps} steps of {each:.2f} s, fit {spent:.0f} s of CPU; held out {measured[0]:.5f} at the start, "
        f"{inverter.held_out:.5f} at best",
        flush=True,
    )
    return inverter


def parsed(name: str) -> tuple[str, dict[str, object]]:
    """``attack:key=1+other=2`` as the attack and its options."""
    kind, _, rest = name.partition(":")
    return kind, {key: int(value) for key, _, value in (pair.partition("=") for pair in rest.split("+") if pair)}


def some(batch: ls.Batch, count: int) -> ls.Batch:
    return ls.Batch(images=batch.images[:count], labels=batch.labels[:count])


def matched(
    name: str,
    model: ls.VisionModel,
    few: ls.Batch,
    steps: int,
    defences: tuple[ls.Defence, ...] = (),
    protocol: ls.ClientProtocol | None = None,
    public: ls.Batch | None = None,
    **options: object,
) -> Tensor:
    """Optimisation towards what a client sent of these images, one by one, labels known; what came back.

    ``public`` images are only for attacks that use some.
    """
    found: list[Tensor] = []
    began = time.process_time()
    for index in range(len(few)):
        one = ls.Batch(images=few.images[index : index + 1], labels=few.labels[index : index + 1])
        seen = ls.observe(
            model,
            one,
            protocol=protocol or ls.FedSGD(),
            defences=defences,
            threat=ls.threats.WITH_LABELS if public is None else ls.threats.WITH_PUBLIC_DATA,
            public=public,
            generator=seeded(2),
        )
        found.append(ls.attack(name, steps=steps, **options)(seen, generator=seeded(3)).images)
    each = (time.process_time() - began) / len(few)
    say(f"{name}, {len(few)} images, {steps} steps", scores(torch.cat(found), few), f"{each:.2f} s an image")
    return torch.cat(found)


def sheet(shown: dict[str, dict[str, Tensor]], path: Path) -> None:
    """Cuts (or noises) side by side; in each, a row for every method and a column for every image."""
    rows = list(next(iter(shown.values())))
    left, top, gap = 70, 16, 8
    wide = len(shown) * (TILE * len(next(iter(next(iter(shown.values())).values()))) + gap)
    page = Image.new("RGB", (left + wide, top + TILE * len(rows)), "white")
    draw = ImageDraw.Draw(page)
    for number, row in enumerate(rows):
        draw.text((2, top + TILE * number + TILE // 2 - 5), row, fill="black")
    x = left
    for cut, made in shown.items():
        draw.text((x, 2), cut, fill="black")
        for number, row in enumerate(rows):
            for place, image in enumerate(made[row]):
                tile = F.interpolate(
                    image[None].clamp(0, 1), (TILE, TILE), mode="nearest" if image.shape[-1] < TILE else "area"
                )
                pixels = (255 * tile[0]).round().byte().permute(1, 2, 0).numpy()
                page.paste(Image.fromarray(pixels), (x + TILE * place, top + TILE * number))
        x += TILE * len(made["originals"]) + gap
    path.parent.mkdir(parents=True, exist_ok=True)
    page.save(path, optimize=True)
