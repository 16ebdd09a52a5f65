"""LTI against coarse GIT on CIFAR-10, alone and as a start for optimisation.

    python benchmarks/learned.py gradients --data cifar10.zip [--minutes 4] [--only git-coarse:evidence=0,lti]
        [--model leakscope:lenet-lti] [--weights FILE] [--matching 2000]
    python benchmarks/learned.py bootstrap --data cifar10.zip [--pairs 10000]
    python benchmarks/learned.py start --data cifar10.zip [--pairs 10000] [--images 10] [--steps 300]

One thread. Every fit gets the same pairs and about the same minutes of CPU time: a few steps are timed, and the rest of
the minutes is divided by them. Test images are CIFAR-10's own; fits see training images only and
choose their best point by some of those. One line for each: MSE, PSNR, SSIM, LPIPS over all test images, and the time.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import leakscope as ls
from _learned import cifar, matched, parsed, say, scores, seeded, some, within
from leakscope.attacks.learned.pairs import replay_many
from leakscope.attacks.learned.reading import LinearInput
from leakscope.attacks.learned.scaling import ridge


def gradients(options: argparse.Namespace) -> None:
    """Coarse GIT against LTI on one model; with ``--matching``, Inverting Gradients on some of the same images."""
    model = ls.load_model(options.model, num_classes=10, image_size=32, weights=options.weights, seed=0)
    public, test = cifar(options.data, "train", options.pairs), cifar(options.data, "test", 200)
    say("mean image", scores(public.images.mean(0).expand_as(test.images), test))
    signal = replay_many(model, test.images[:, None], test.labels[:, None], protocol=ls.FedSGD(), generator=seeded(2))
    for name in options.only.split(","):
        kind, extra = parsed(name)
        inverter = within(kind, options.minutes, public, model, ls.FedSGD(), (), options.fit_steps, **extra)
        began = time.perf_counter()
        images = inverter.images(signal)[:, 0]
        each = (time.perf_counter() - began) / len(test)
        say(name, scores(images, test), f"{1000 * each:.1f} ms an image")
        inverter.save(Path(f"out/learned/{name.replace(':', '-')}.safetensors"))
        say(f"{name}, the first {options.images}", scores(images[: options.images], some(test, options.images)))
    if options.matching:
        matched("inverting-gradients", model, some(test, options.images), options.matching)


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
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    STUDIES[options.what](options)


STUDIES = {"bootstrap": bootstrap, "gradients": gradients, "start": start}

if __name__ == "__main__":
    main()
