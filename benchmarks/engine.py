"""The engine's step against a bare forward + backward and a bare double backward, in one interleaved run.

    python benchmarks/engine.py [--rounds 9] [--threads 1] [--models resnet18,convnet64]

A *bare* double backward is the shortest code a person would write: gradients with ``create_graph``, the cosine
distance, one more gradient; no projection, no optimiser, no total variation. Ours is a whole step of the attack.
Each row runs in a process of its own, so that its peak memory is its own. The bare ways take the whole batch at once,
ours as many images as the case says.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

CASES = {
    "resnet18-b1": ("leakscope:resnet18", 1, 32, None),
    "resnet18-b8": ("leakscope:resnet18", 8, 32, None),
    "convnet64-b1": ("leakscope:convnet64", 1, 32, None),
    "april-b-b1": ("leakscope:april-b", 1, 32, None),
    "april-b-b4": ("leakscope:april-b", 4, 32, None),
    "vit-b16-b1": ("timm:vit_base_patch16_224", 1, 224, None),
    "vit-b16-b8": ("timm:vit_base_patch16_224", 8, 224, None),
    "vit-b16-b8-m1": ("timm:vit_base_patch16_224", 8, 224, 1),
}
"""Model, batch, pixels, and how many images go through the network at a time."""


def measure(case: str, ways: list[str], rounds: int, threads: int) -> dict[str, object]:
    """Seconds per step for each way, interleaved, and this process's peak memory."""
    import torch
    from torch.nn.functional import cross_entropy

    import leakscope as ls
    from leakscope.attacks.differentiate import Problem
    from leakscope.attacks.member import Member
    from leakscope.attacks.micro_batches import ways as ways_for

    torch.set_num_threads(threads)
    name, size, pixels, micro_batch = CASES[case]
    model = ls.load_model(name, num_classes=10, image_size=pixels, seed=0)
    names = [ls.bundled_names()[i % len(ls.bundled_names())] for i in range(size)]
    batch = ls.bundled_batch(names, size=pixels)
    seen = ls.observe(
        model,
        batch,
        protocol=ls.FedSGD(micro_batch=micro_batch),
        threat=ls.threats.WITH_LABELS,
        generator=torch.Generator().manual_seed(0),
    )
    attack = ls.attack("inverting-gradients", steps=1_000_000)
    problem = Problem.of(seen, attack.terms)
    member = Member(0, attack, seen, torch.Generator().manual_seed(1))
    x, y = member.leaves[0], batch.labels
    parameters, observed = list(model.parameters()), list(seen.gradients.values())
    target_norm = sum(float(g.square().sum()) for g in observed) ** 0.5

    def forward_backward() -> None:
        torch.autograd.grad(cross_entropy(model.module(x), y), [x, *parameters])

    def double_backward() -> None:
        with model.differentiable_twice():
            loss = cross_entropy(model.module(x), y)
            gradient = torch.autograd.grad(loss, parameters, create_graph=True)
            inner = sum((a * b).sum() for a, b in zip(gradient, observed, strict=True))
            norm = sum(a.square().sum() for a in gradient).sqrt()
            torch.autograd.grad(1 - inner / (norm * target_norm), x)

    def step(way):
        return lambda: member.advance(0, problem, ways_for(seen)[way], ())

    every = {
        "forward+backward": forward_backward,
        "double backward": double_backward,
        "exact step": step("exact"),
        "fast step": step("fast"),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    model.module.eval()
    for round_ in range(rounds + 1):
        for way in ways:
            started = time.perf_counter()
            every[way]()
            if round_:  # the first round warms up
                seconds[way].append(time.perf_counter() - started)
    return {
        "seconds": {way: statistics.median(times) for way, times in seconds.items()},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_process(case: str, ways: list[str], rounds: int, threads: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--case", case, "--ways", ",".join(ways)]
    command += ["--rounds", str(rounds), "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", default=",".join(CASES), help="which rows")
    parser.add_argument("--out", type=Path, default=Path("out/bench/engine.json"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--ways", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(given.case, given.ways.split(","), given.rounds, given.threads)))
        return

    ways = ["forward+backward", "double backward", "exact step", "fast step"]
    rows: dict[str, object] = {}
    print(f"{'':14} {'bare double':>12} {'fwd+bwd':>8} {'exact':>7} {'fast':>7}   peak MiB: double / exact / fast")
    for case in given.models.split(","):
        timed = in_process(case, ways, given.rounds, given.threads)["seconds"]
        memory = {way: in_process(case, [way], 1, given.threads)["peak_mib"] for way in ways[1:]}
        bare = timed["double backward"]
        ratio = {way: timed[way] / bare for way in ways}
        rows[case] = {"seconds": timed, "ratio": ratio, "peak_mib": memory}
        print(
            f"{case:14} {bare * 1e3:9.1f} ms {ratio['forward+backward']:7.2f}x {ratio['exact step']:6.2f}x "
            f"{ratio['fast step']:6.2f}x   {memory['double backward']:.0f} / {memory['exact step']:.0f} / "
            f"{memory['fast step']:.0f}"
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(f"figures: {given.out}")


if __name__ == "__main__":
    main()
