"""Learned attacks on CIFAR-10: LTI against coarse GIT, under noise, as a start for optimisation; DCI by cut.

    python benchmarks/learned.py gradients --data cifar10.zip [--minutes 4] [--only git-coarse:evidence=0,lti]
        [--model leakscope:lenet-lti] [--weights FILE] [--matching 2000]
    python benchmarks/learned.py bootstrap --data cifar10.zip [--pairs 10000]
    python benchmarks/learned.py noise --data cifar10.zip [--pairs 10000] [--minutes 4]
    python benchmarks/learned.py start --data cifar10.zip [--pairs 10000] [--images 10] [--steps 300]
    python benchmarks/learned.py split --data cifar10.zip [--weights cifar10-resnet20.safetensors]

One thread. Every fit gets the same pairs and about the same minutes of CPU time: a few steps are timed, and the rest of
the minutes is divided by them. Test images are CIFAR-10's own; fits see training images only and
choose their best point by some of those. One line for each: MSE, PSNR, SSIM, LPIPS over all test images, and the time.
"""

from __future__ import annotations

import argparse
import io
import math
import time
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import leakscope as ls
from leakscope.attacks.learned.inverter import Inverter
from leakscope.attacks.learned.learned import LearnedAttack
from leakscope.attacks.learned.pairs import replay_many
from leakscope.attacks.learned.reading import LinearInput
from leakscope.attacks.learned.scaling import ridge

METRICS = ["mse", "psnr", "ssim", "lpips"]


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
    means = f"MSE {found['mse']:.5f}  PSNR {found['psnr']:6.2f}  SSIM {found['ssim']:.3f}  LPIPS {found['lpips']:.3f}"
    print(f"{what:<34} {means}  {more}", flush=True)


def within(
    name: str,
    minutes: float,
    public: ls.Batch,
    model: ls.VisionModel,
    protocol: ls.ClientProtocol,
    defences: tuple[ls.Defence, ...] = (),
    steps: int | None = None,
    **options: object,
) -> Inverter:
    """Fit ``name`` for about ``minutes`` of CPU time, replays and closed-form starts included; or for ``steps``."""
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
        few = 6
        fit(few)
        each = (marks[few - 1] - marks[1]) / (few - 2)
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


def gradients(options: argparse.Namespace) -> None:
    """Coarse GIT against LTI on one model; with ``--matching``, Inverting Gradients on some of the same images."""
    model = ls.load_model(options.model, num_classes=10, image_size=32, weights=options.weights, seed=0)
    public, test = cifar(options.data, "train", options.pairs), cifar(options.data, "test", 200)
    say("mean image", scores(public.images.mean(0).expand_as(test.images), test))
    signal = replay_many(model, test.images[:, None], test.labels[:, None], protocol=ls.FedSGD(), generator=seeded(2))
    for name in options.only.split(","):
        kind, extra = _parsed(name)
        inverter = within(kind, options.minutes, public, model, ls.FedSGD(), (), options.fit_steps, **extra)
        began = time.perf_counter()
        images = inverter.images(signal)[:, 0]
        each = (time.perf_counter() - began) / len(test)
        say(name, scores(images, test), f"{1000 * each:.1f} ms an image")
        inverter.save(Path(f"out/learned/{name.replace(':', '-')}.safetensors"))
        say(f"{name}, the first {options.images}", scores(images[: options.images], _some(test, options.images)))
    if options.matching:
        _matched("inverting-gradients", model, _some(test, options.images), options.matching)


def _parsed(name: str) -> tuple[str, dict[str, object]]:
    """``attack:key=1+other=2`` as the attack and its options."""
    kind, _, rest = name.partition(":")
    return kind, {key: int(value) for key, _, value in (pair.partition("=") for pair in rest.split("+") if pair)}


def _some(batch: ls.Batch, count: int) -> ls.Batch:
    return ls.Batch(images=batch.images[:count], labels=batch.labels[:count])


def _matched(
    name: str, model: ls.VisionModel, few: ls.Batch, steps: int, defences: tuple[ls.Defence, ...] = ()
) -> None:
    """Gradient matching on these images, one by one, labels known."""
    found: list[Tensor] = []
    began = time.process_time()
    for index in range(len(few)):
        one = ls.Batch(images=few.images[index : index + 1], labels=few.labels[index : index + 1])
        seen = ls.observe(
            model,
            one,
            protocol=ls.FedSGD(),
            defences=defences,
            threat=ls.threats.WITH_LABELS,
            generator=seeded(2),
        )
        found.append(ls.attack(name, steps=steps)(seen, generator=seeded(3)).images)
    each = (time.process_time() - began) / len(few)
    say(f"{name}, {len(few)} images, {steps} steps", scores(torch.cat(found), few), f"{each:.1f} s an image")


def bootstrap(options: argparse.Namespace) -> None:
    """What the closed form of the classifier's input is worth by itself: ridge regression from it to the pixels."""
    model = ls.load_model("leakscope:lenet-lti", num_classes=10, image_size=32, seed=0)
    public, test = cifar(options.data, "train", options.pairs), cifar(options.data, "test", 200)
    reading = LinearInput(name="input", weight="fc.weight", bias="fc.bias", width=768)

    def read(batch: ls.Batch) -> Tensor:
        parts = zip(batch.images.split(250), batch.labels.split(250), strict=True)
        return torch.cat(
            [
                reading(replay_many(model, x[:, None], y[:, None], protocol=ls.FedSGD(), generator=seeded(2)))
                for x, y in parts
            ]
        )

    rows, private = read(public), read(test)
    for label, undo in (("as it is", torch.Tensor.clone), ("sigmoid undone", partial(torch.logit, eps=1e-6))):
        weights, bias, _ = ridge(undo(rows), public.images.flatten(1), held=500)
        say(f"ridge, {label}", scores((undo(private) @ weights + bias).view_as(test.images), test))


def noise(options: argparse.Namespace) -> None:
    model = ls.load_model("leakscope:lenet-lti", num_classes=10, image_size=32, seed=0)
    public, test = cifar(options.data, "train", options.pairs), cifar(options.data, "test", 200)
    for label in options.noises.split(","):
        kind, size = label.split()
        per = "entry" if kind == "absolute" else "tensor"
        defence = ls.defence("gaussian-noise", scale=float(size), per=per)
        signal = replay_many(
            model,
            test.images[:, None],
            test.labels[:, None],
            protocol=ls.FedSGD(),
            defences=(defence,),
            generator=seeded(2),
        )
        for name in options.only.split(","):
            kind, extra = _parsed(name)
            inverter = within(kind, options.minutes, public, model, ls.FedSGD(), (defence,), options.fit_steps, **extra)
            say(f"{name}, noise {label}", scores(inverter.images(signal)[:, 0], test))
        if options.matching:
            _matched("inverting-gradients", model, _some(test, options.images), options.matching, (defence,))
            _matched("dlg", model, _some(test, options.images), min(300, options.matching), (defence,))


def start(options: argparse.Namespace) -> None:
    """Inverting Gradients from noise, and from what a fitted coarse GIT says (without evidence: with it, little is left
    to gain)."""
    model = ls.load_model("leakscope:lenet-lti", num_classes=10, image_size=32, seed=0)
    test = cifar(options.data, "test", options.images)
    saved = Path("out/learned/git-coarse-evidence=0.safetensors")
    if not saved.exists():
        public = cifar(options.data, "train", options.pairs)
        within("git-coarse", options.minutes, public, model, ls.FedSGD(), evidence=False).save(saved)
    inverter = ls.load_inverter(saved, model)
    marks = sorted({0, options.steps // 10, options.steps // 3, options.steps - 1})
    plain = ls.attack("inverting-gradients", steps=options.steps)
    assert isinstance(plain, ls.Optimisation)
    first = ls.from_attack(inverter)
    # Signed steps of 0.1 throw a good start away within a few steps: from there they must be small.
    small = ls.attack("inverting-gradients", steps=options.steps, lr=0.002, tv=1e-4)
    assert isinstance(small, ls.Optimisation)
    attacks = {
        "noise": plain,
        "git": replace(plain, init=first),
        "noise, lr 0.002, tv 1e-4": small,
        "git, lr 0.002, tv 1e-4": replace(small, init=first),
    }
    rows: dict[str, list[list[float]]] = {label: [] for label in attacks}
    pictures: dict[str, list[Tensor]] = {label: [] for label in [*attacks, "inverter"]}
    reached: list[int] = []
    for index in range(len(test)):
        one = ls.Batch(images=test.images[index : index + 1], labels=test.labels[index : index + 1])
        seen = ls.observe(
            model,
            one,
            protocol=ls.FedSGD(),
            threat=ls.threats.WITH_PUBLIC_DATA,
            public=inverter.public,
            generator=seeded(2),
        )
        traces: dict[str, tuple[float, ...]] = {}
        for label, attack in attacks.items():
            found = attack(seen, generator=seeded(3))
            traces[label] = found.trace[0]
            rows[label].append([found.trace[0][mark] for mark in marks])
            pictures[label].append(found.images)
        pictures["inverter"].append(inverter(seen, generator=seeded(3)).images)
        goal = min(traces["noise"])
        reached.append(next((step for step, loss in enumerate(traces["git"]) if loss <= goal), options.steps))
    for label, found in rows.items():
        means = torch.tensor(found).mean(0).tolist()
        line = ", ".join(f"step {mark} {value:.3g}" for mark, value in zip(marks, means, strict=True))
        say(f"IG from {label}", scores(torch.cat(pictures[label]), test), f"loss at {line}")
    say("the inverter alone", scores(torch.cat(pictures["inverter"]), test))
    print(f"the start from GIT reaches the final loss of the start from noise after {reached} of {options.steps} steps")


def split(options: argparse.Namespace) -> None:
    """DCI on a trained ResNet-20, by cut: on public images, on made-up ones, against a decoder and feature matching."""
    model = ls.load_model("leakscope:resnet20", num_classes=10, image_size=32, weights=options.weights, seed=0)
    public, test = cifar(options.data, "train", options.pairs), cifar(options.data, "test", 50)
    say("mean image", scores(public.images.mean(0).expand_as(test.images), test))
    for cut in options.cuts.split(","):
        protocol = ls.Split(cut=cut)
        private = test.images[:, None], test.labels[:, None]
        signal = replay_many(model, *private, protocol=protocol, generator=seeded(2))
        dci = ls.attack("dci", steps=options.steps)
        assert isinstance(dci, LearnedAttack)
        began = time.process_time()
        inverter = dci.fit(public, protocol, model=model, generator=seeded(1))
        took = time.process_time() - began
        stages = len({row[0] for row in inverter.trace})
        began = time.process_time()
        images = inverter.images(signal)[:, 0]
        each = (time.process_time() - began) / len(test)
        say(f"{cut}: dci", scores(images, test), f"fit {took:.0f} s, {1000 * each:.1f} ms an image")
        decoder = ls.attack("decoder", steps=2 * stages * options.steps)
        assert isinstance(decoder, LearnedAttack)
        began = time.process_time()
        single = decoder.fit(public, protocol, model=model, generator=seeded(1))
        took = time.process_time() - began
        say(f"{cut}: decoder", scores(single.images(signal)[:, 0], test), f"fit {took:.0f} s")
        if options.free:
            free = ls.attack("dci", steps=options.steps, data="synthetic", images=options.free)
            assert isinstance(free, LearnedAttack)
            began = time.process_time()
            made = free.fit(None, protocol, model=model, generator=seeded(1))
            took = time.process_time() - began
            say(f"{cut}: dci, data-free", scores(made.images(signal)[:, 0], test), f"fit {took:.0f} s")
        few = ls.Batch(images=test.images[:5], labels=test.labels[:5])
        matched: list[Tensor] = []
        began = time.process_time()
        for index in range(len(few)):
            one = ls.Batch(images=few.images[index : index + 1], labels=few.labels[index : index + 1])
            seen = ls.observe(model, one, protocol=protocol, generator=seeded(2))
            matched.append(ls.attack("inverting-gradients", steps=300)(seen, generator=seeded(3)).images)
        each = (time.process_time() - began) / len(few)
        say(f"{cut}: feature matching, 5 images", scores(torch.cat(matched), few), f"{1000 * each:.0f} ms an image")
        say(f"{cut}: dci, the same 5", scores(images[:5], few))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(STUDIES))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="leakscope:lenet-lti")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--only", default="git-coarse,lti")
    parser.add_argument("--images", type=int, default=10, help="how many test images are optimised, one by one")
    parser.add_argument("--matching", type=int, default=0, help="steps of gradient matching beside the inverters")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--fit-steps", type=int, help="of a fit, in place of minutes")
    parser.add_argument("--noises", default="relative 0.01,relative 0.1,absolute 0.01,absolute 0.1")
    parser.add_argument("--cuts", default="layer1.0,layer2.0")
    parser.add_argument("--free", type=int, default=0, help="images to make up, for the data-free fit")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    STUDIES[options.what](options)


STUDIES = {"bootstrap": bootstrap, "gradients": gradients, "noise": noise, "split": split, "start": start}

if __name__ == "__main__":
    main()
