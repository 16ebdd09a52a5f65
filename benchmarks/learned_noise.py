"""Noise on the gradients of LTI's LeNet: what attacks lose by it, and what any attack must lose.

    python benchmarks/learned_noise.py attacks --data cifar10.zip [--pairs 2000] [--only git-coarse] [--matching 2000]
    python benchmarks/learned_noise.py bound --data cifar10.zip [--pairs 10000] [--images 5]

``attacks``: inverters fitted for each noise, on 200 test images; on the first ten of them DLG (which searches the
labels along), Inverting Gradients (labels known, noise not) and ``posterior`` (both known, and the public images).
``relative`` noise is a share of each tensor's size, ``absolute`` noise a deviation in every entry.

``bound``: g(x + d) ≈ g(x) + Jd at each test image x, noise N(0, σ²) in every entry of g, and images N(μ, Σ) with the
mean and covariance of the public ones: what is left after the best guess is tr[(JᵀJ/σ² + Σ⁻¹)⁻¹] / 3072. It grants the
server where to linearise, and grants no more about images than their covariance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.nn import functional as F

import leakscope as ls
from _learned import cifar, matched, parsed, say, scores, seeded, sheet, some, within
from leakscope.attacks.learned.pairs import replay_many

RIDGE = 1e-5
CHUNK = 128
LEAST = 1e-3
"""The noise that ``posterior`` reckons with where there is none."""


def attacks(options: argparse.Namespace) -> None:
    model = ls.load_model("leakscope:lenet-lti", num_classes=10, image_size=32, seed=0)
    public, test = cifar(options.data, "train", options.pairs), cifar(options.data, "test", 200)
    few = some(test, options.images)
    shown: dict[str, dict[str, Tensor]] = {}
    for label in options.noises.split(","):
        kind_of_noise, size = label.split()
        per = "entry" if kind_of_noise == "absolute" else "tensor"
        rows = shown.setdefault(label, {"originals": few.images})
        defence = ls.defence("gaussian-noise", scale=float(size), per=per)
        signal = replay_many(
            model,
            test.images[:, None],
            test.labels[:, None],
            protocol=ls.FedSGD(),
            defences=(defence,),
            generator=seeded(2),
        )
        for name in filter(None, options.only.split(",")):
            kind, extra = parsed(name)
            inverter = within(kind, options.minutes, public, model, ls.FedSGD(), (defence,), options.fit_steps, **extra)
            made = inverter.images(signal)[:, 0]
            say(f"{name}, noise {label}", scores(made, test))
            rows[name] = made[: len(few)]
            say(f"{name}, the first {len(few)}", scores(rows[name], few))
        for name, steps in (("inverting-gradients", options.matching), ("dlg", options.dlg)):
            if steps:
                print(f"noise {label}:")
                rows[name] = matched(name, model, few, steps, (defence,))
        if options.posterior and kind_of_noise == "absolute":
            reckoned = max(float(size), LEAST)
            rows["posterior"] = matched(
                "posterior", model, few, options.posterior, (defence,), public=public, noise=reckoned
            )
    if options.picture:
        sheet(shown, options.picture)


def jacobian(model: ls.VisionModel, pixels: Tensor, label: Tensor) -> Tensor:
    """Jᵀ (3072, parameters) of one image's gradient, in double precision."""
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def gradient(image: Tensor) -> Tensor:
        def loss(own: dict[str, Tensor]) -> Tensor:
            return F.cross_entropy(model.functional(own, {}, image[None]), label[None])

        return torch.cat([part.flatten() for part in grad(loss)(weights).values()])

    directions = torch.eye(pixels.numel()).view(-1, *pixels.shape)
    with model.mode(False):
        return torch.cat(
            [vmap(lambda d: jvp(gradient, (pixels,), (d,))[1])(part) for part in directions.split(CHUNK)]
        ).double()


def bound(options: argparse.Namespace) -> None:
    model = ls.load_model("leakscope:lenet-lti", num_classes=10, image_size=32, seed=0)
    public, test = cifar(options.data, "train", options.pairs), cifar(options.data, "test", options.images)
    covariance = torch.cov(public.images.flatten(1).double().T)
    size = len(covariance)
    print(f"without any gradient: {float(covariance.trace()) / size:.4f}")
    precision = torch.linalg.inv(covariance + RIDGE * torch.eye(size).double())
    deviations, left = [float(value) for value in options.deviations.split(",")], []
    for index in range(len(test)):
        columns = jacobian(model, test.images[index], test.labels[index])
        gram = columns @ columns.T
        left.append([float(torch.linalg.inv(gram / s**2 + precision).trace()) / size for s in deviations])
        print(
            f"image {index}:",
            "  ".join(f"{s:g}: {v:.5f}" for s, v in zip(deviations, left[-1], strict=True)),
            flush=True,
        )
    means = torch.tensor(left).mean(0).tolist()
    print("mean:   ", "  ".join(f"{s:g}: {v:.5f}" for s, v in zip(deviations, means, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["attacks", "bound"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--only", default="git-coarse", help="inverters to fit; '' for none")
    parser.add_argument("--images", type=int, default=10, help="how many test images are taken one by one")
    parser.add_argument("--matching", type=int, default=0, help="steps of Inverting Gradients beside the inverters")
    parser.add_argument("--dlg", type=int, default=0, help="steps of DLG (L-BFGS)")
    parser.add_argument("--posterior", type=int, default=0, help="steps of posterior, which knows the noise")
    parser.add_argument("--fit-steps", type=int, help="of a fit, in place of minutes")
    parser.add_argument("--noises", default="absolute 0.0,absolute 0.01,absolute 0.1")
    parser.add_argument("--deviations", default="0.001,0.01,0.1", help="of the bound")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    {"attacks": attacks, "bound": bound}[options.what](options)


if __name__ == "__main__":
    main()
