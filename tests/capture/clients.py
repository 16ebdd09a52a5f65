"""A small network with BatchNorm, and clients that train it with torch's own optimisers: the outside reference."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import leakscope as ls
from leakscope.capture import Update, update_from_states


def small_model(seed: int = 0) -> ls.VisionModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            *(nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6), nn.Tanh()),
            *(nn.Conv2d(6, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6), nn.Tanh()),
            *(nn.Flatten(), nn.Linear(6 * 4 * 4, 10)),
        )
    spec = ls.InputSpec(shape=(3, 16, 16), num_classes=10)
    return ls.VisionModel(net, input=spec, mean=[0.5] * 3, std=[0.25] * 3, name="small network")


def photographs(count: int = 4) -> ls.Batch:
    return ls.bundled_batch(["astronaut", "cat", "coffee", "flower"][:count], size=16)


def trained(
    model: ls.VisionModel,
    batch: ls.Batch,
    *,
    mode: str = "train",
    steps: int = 1,
    lr: float = 0.05,
    optimiser: str = "sgd",
    batch_size: int | None = None,
    order: Sequence[int] | None = None,
    **facts: float,
) -> Update:
    """The update of a client written with plain torch."""
    net = copy.deepcopy(model.module)
    net.train(mode == "train")
    made = {
        "sgd": lambda p: torch.optim.SGD(p, lr=lr),
        "momentum": lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=lr),
    }[optimiser](net.parameters())
    rows = torch.tensor(order if order is not None else range(len(batch)))
    parts = rows.split(batch_size or len(batch))
    for step in range(steps):
        part = parts[step % len(parts)]
        made.zero_grad()
        cross_entropy(net(model.normalise(batch.images[part])), batch.labels[part]).backward()
        made.step()
    return update_from_states(model.module.state_dict(), net.state_dict(), metadata=facts)
