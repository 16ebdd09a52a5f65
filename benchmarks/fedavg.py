"""Attacks through local training, measured. Prints tables; never fails a build.

python benchmarks/fedavg.py attacks      unrolled replay against delta-as-gradient, by learning rate and local steps
python benchmarks/fedavg.py order        a private order: replayed as if known, and with a copy of the batch per epoch
python benchmarks/fedavg.py optimisers   momentum, Nesterov, AdamW, fp16 and bf16 on the wire
python benchmarks/fedavg.py derivative   the unrolled objective's derivative against differences in float64
python benchmarks/fedavg.py memory       peak memory and time of a long unroll, kept whole and computed again
python benchmarks/fedavg.py convnet64    five steps on four images through leakscope:convnet64 (minutes)
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import replace

import torch
from torch import nn

import leakscope as ls
from leakscope.client import fedavg

IMAGES = ["astronaut", "cat", "coffee", "raccoon"]


class ConvNet(nn.Module):
    """Two convolutions with ReLU and a linear layer."""

    def __init__(self, size: int, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.second = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(2 * width * (size // 2) ** 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x).relu()).relu().flatten(1))


def convnet(size: int = 8) -> ls.VisionModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = ConvNet(size)
    spec = ls.InputSpec(shape=(3, size, size), num_classes=10)
    return ls.VisionModel(module, input=spec, mean=(0.5,) * 3, std=(0.25,) * 3, name="convnet")


def attacked(model: ls.VisionModel, client: ls.ClientProtocol, attack: str, **options: object) -> str:
    batch = ls.bundled_batch(IMAGES, size=model.input.shape[1])
    draws = torch.Generator().manual_seed(3)
    seen = ls.observe(model, batch, protocol=client, threat=ls.threats.WITH_LABELS, generator=draws)
    began = time.perf_counter()
    found = ls.attack(attack, **options)(seen, generator=torch.Generator().manual_seed(1))
    psnr = ls.score(found, batch, ("psnr",))["psnr"]
    return f"{float(psnr.mean()):6.1f} dB mean {float(psnr.min()):6.1f} worst {time.perf_counter() - began:6.1f} s"


def attacks(steps: int) -> None:
    for lr in (0.03, 0.1):
        for local in (1, 5):
            client = ls.FedAvg(steps=local, optimiser=ls.Sgd(lr=lr))
            known = attacked(convnet(), client, "data-leakage-fl", steps=steps, order="known")
            plain = attacked(convnet(), client, "inverting-gradients", steps=steps)
            short = attacked(convnet(), client, "delta-as-gradient", steps=steps)
            print(f"lr {lr:<5} {local} steps  unrolled {known} | ig {plain} | delta as gradient {short}", flush=True)


def order(steps: int) -> None:
    for lr in (0.03, 0.1):
        client = ls.FedAvg(epochs=3, batch_size=2, order="private", optimiser=ls.Sgd(lr=lr))
        fixed = replace(client, order="fixed")
        for name, who, attack, options in (
            ("order known", fixed, "data-leakage-fl", {"order": "known"}),
            ("order wrong", client, "data-leakage-fl", {"order": "known"}),
            ("copies", client, "data-leakage-fl", {"order": "unknown"}),
            ("copies, untied", client, "data-leakage-fl", {"order": "unknown", "invariance": 0.0}),
            ("delta as gradient", client, "delta-as-gradient", {}),
        ):
            print(f"lr {lr:<5} {name:18s} {attacked(convnet(), who, attack, steps=steps, **options)}", flush=True)


def optimisers(steps: int) -> None:
    cases = {
        "sgd": ls.FedAvg(steps=5, optimiser=ls.Sgd(lr=0.03)),
        "sgd, fp16": ls.FedAvg(steps=5, optimiser=ls.Sgd(lr=0.03), precision="fp16"),
        "sgd, bf16 weights": ls.FedAvg(steps=5, optimiser=ls.Sgd(lr=0.03), precision="bf16", share="weights"),
        "momentum": ls.FedAvg(steps=5, optimiser=ls.Sgd(lr=0.01, momentum=0.9)),
        "nesterov, decay": ls.FedAvg(
            steps=5, optimiser=ls.Sgd(lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-3)
        ),
        "adamw": ls.FedAvg(steps=5, optimiser=ls.adamw(lr=1e-3)),
    }
    for name, client in cases.items():
        print(f"{name:20s} {attacked(convnet(), client, 'data-leakage-fl', steps=steps, order='known')}", flush=True)


def derivative(_: int) -> None:
    model = convnet(8).to(dtype=torch.float64)
    batch = ls.bundled_batch(IMAGES, size=8)
    images = torch.rand(batch.images.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for name, client in (
        ("sgd x1", ls.FedAvg(steps=1)),
        ("sgd x5", ls.FedAvg(steps=5, batch_size=2)),
        ("sgd x20", ls.FedAvg(steps=20, batch_size=2)),
        ("adamw x5", ls.FedAvg(steps=5, batch_size=2, optimiser=ls.adamw(lr=1e-3))),
    ):
        target = client.replay(model, batch.images.double(), batch.labels)

        def objective(x: torch.Tensor, graph: bool = False) -> torch.Tensor:
            found = client.replay(model, x, batch.labels, create_graph=graph)  # noqa: B023 (called in this turn)
            return torch.stack([(found[n] - v).square().sum() for n, v in target.items()]).sum()  # noqa: B023

        leaf = images.clone().requires_grad_()
        (found,) = torch.autograd.grad(objective(leaf, True), leaf)
        worst = 0.0
        for seed in range(5):
            towards = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            towards /= towards.norm()
            slope = (objective(images + 1e-6 * towards) - objective(images - 1e-6 * towards)) / 2e-6
            worst = max(worst, float(((found * towards).sum() - slope).abs() / found.norm()))
        print(f"{name:10s} largest error of a directional derivative {worst:.1e} of the gradient's norm", flush=True)


def memory(_: int) -> None:
    for steps in (5, 20):
        for kept in (2**40, 0):
            command = [sys.executable, __file__, "one-unroll", "--steps", str(steps), "--kept", str(kept)]
            subprocess.run(command, check=True)


def one_unroll(steps: int, kept: int) -> None:
    fedavg.KEPT = kept  # type: ignore[misc]
    model = ls.load_model("leakscope:convnet64", num_classes=10, image_size=16, seed=0)
    batch = ls.bundled_batch(IMAGES, size=16)
    images, before = batch.images.clone().requires_grad_(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    signal = ls.FedAvg(steps=steps).replay(model, images, batch.labels, create_graph=True)
    torch.autograd.grad(torch.stack([v.square().sum() for v in signal.values()]).sum(), images)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    how = "kept whole" if kept else "computed again"
    print(f"{steps:3d} steps {how:15s} {peak:7.0f} MB more, {time.perf_counter() - began:5.1f} s", flush=True)


def convnet64(steps: int) -> None:
    model = ls.load_model("leakscope:convnet64", num_classes=10, image_size=16, seed=0)
    client = ls.FedAvg(steps=5, optimiser=ls.Sgd(lr=0.01))
    for name, options in (("delta-as-gradient", {}), ("data-leakage-fl", {"order": "known"})):
        print(f"{name:18s} {attacked(model, client, name, steps=steps, **options)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {f.__name__: f for f in (attacks, order, optimisers, derivative, memory, convnet64)}
    parser.add_argument("part", choices=[*parts, "one-unroll"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kept", type=int, default=fedavg.KEPT)
    given = parser.parse_args()
    if given.part == "one-unroll":
        one_unroll(given.steps, given.kept)
    else:
        parts[given.part](given.steps)
