"""A small client to defend, and one round of it."""

from functools import cache

import torch

import leakscope as ls
from leakscope.client.round import run_round
from leakscope.types import Setting


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@cache
def mlp():
    return ls.load_model("leakscope:mlp?hidden=16&activation=tanh", num_classes=10, image_size=8, seed=0)


@cache
def vit():
    return ls.load_model("leakscope:april-b", num_classes=10, image_size=8, seed=0)


def private(count=2, size=8):
    return ls.bundled_batch(["cat", "coffee", "astronaut", "temple"][:count], size=size)


def company(size=8):
    return ls.bundled_batch(["brick", "camera", "flower", "raccoon", "retina", "stairs"], size=size)


def setting(model=None, batch=None, *, protocol=None, others=None):
    model, batch, protocol = model or mlp(), batch or private(), protocol or ls.FedSGD()
    return Setting(
        model=model,
        images=batch.images,
        labels=batch.labels,
        protocol=protocol,
        aware=protocol,
        unaware=protocol,
        others=company() if others is None else others,
    )


def sent(*defences, seed=0, start=None):
    """The signal of one round."""
    return run_round(start or setting(), defences, generator=seeded(seed))[1]


def flat(signal):
    return torch.cat([value.flatten() for value in signal.values()])
