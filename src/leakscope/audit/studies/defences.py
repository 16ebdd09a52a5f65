"""Every defence against a server that ignores it and one that knows it, beside what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch

from leakscope.audit.study import Point, Setup, register_study
from leakscope.audit.utility import (
    BUDGET,
    PROTOCOL,
    Training,
    best_training,
    crops,
    encoded_bytes,
    small_network,
    utility,
)
from leakscope.client.registry import defence
from leakscope.errors import LeakscopeError, MissingExtra
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.testing.bundled import bundled_batch, bundled_names
from leakscope.types import Batch, Defence, Knows

__all__ = ["CHAINS", "ROUNDS", "defences"]

CHAINS: Final[Mapping[str, tuple[str, Mapping[str, object]]]] = {
    "gaussian-noise, 0.1": ("gaussian-noise", {"scale": 0.1}),
    "gaussian-noise, 1": ("gaussian-noise", {"scale": 1.0}),
    "laplace-noise, 0.1": ("laplace-noise", {"scale": 0.1}),
    "laplace-noise, 1": ("laplace-noise", {"scale": 1.0}),
    "clipping, 0.1": ("clipping", {"norm": 0.1}),
    "dp-sgd, σ = 0.01": ("dp-sgd", {"clip": 1.0, "noise_multiplier": 0.01}),
    "dp-sgd, σ = 1": ("dp-sgd", {"clip": 1.0, "noise_multiplier": 1.0}),
    "top-k, 10 %": ("top-k", {"share": 0.1}),
    "random-sparsification, 10 %": ("random-sparsification", {"share": 0.1}),
    "sign": ("sign", {}),
    "sign, unscaled": ("sign", {"scaled": False}),
    "qsgd, 4 levels": ("qsgd", {"levels": 4}),
    "withhold first-layer": ("withhold", {"what": "first-layer"}),
    "withhold all-but-head": ("withhold", {"what": "all-but-head"}),
    "soteria, 50 %": ("soteria", {"share": 0.5}),
    "mixup": ("mixup", {}),
    "instahide, 4": ("instahide", {"mix": 4}),
    "larger-batch, 8": ("larger-batch", {"size": 8}),
    "more-local-steps, 5": ("more-local-steps", {"steps": 5, "lr": 0.1}),
    "secure-aggregation, 4": ("secure-aggregation", {"clients": 4}),
    "fixed-position-embedding": ("fixed-position-embedding", {}),
}
"""What is compared, by the name it has in tables."""

ROUNDS: Final = 8
"""How often the server that knows a defence asks for the same images."""


@register_study("defences", x="defence", series="server")
def defences(setup: Setup) -> Iterator[Point]:
    """Every defence, a server that ignores it and one that knows it: leakage, accuracy, bytes, time, ε.

    Accuracy, time and ε are measured by training a small fully connected network on crops of the bundled photographs
    for a fixed budget, with the defence and without; bytes are those of the audited model's update. A defence that
    does not fit the model (a position embedding that it does not have) is left out.
    """
    channels, size, _ = setup.model.input.shape
    small = small_network(channels)
    generator = fork(torch.Generator().manual_seed(setup.seed), "utility")
    data = crops(16, channels)
    plain = best_training(small, (), data, budget=BUDGET, protocol=PROTOCOL, generator=generator)
    mine = set(setup.batch.names)
    others = bundled_batch([name for name in bundled_names() if name not in mine], size=size, channels=channels)
    whole = float(encoded_bytes((), setup.case().observe().signal))
    yield Point(
        at={"defence": "none", "server": "ignores it"},
        case=setup.case(),
        extra={"accuracy": plain.accuracy, "bytes": whole},
    )
    for label, (name, options) in CHAINS.items():
        chain = (defence(name, **options),)
        knowing = setup.case(defences=chain, others=others, threat=setup.threat.plus(Knows.DEFENCE), rounds=ROUNDS)
        try:
            sent = float(encoded_bytes(chain, setup.case(defences=chain, others=others).observe().signal))
        except MissingExtra:
            raise
        except LeakscopeError:  # it does not fit this model
            continue
        extra = {"bytes": sent} | _price(small, chain, data, plain, generator)
        ignoring = setup.case(defences=chain, others=others)
        yield Point(at={"defence": label, "server": "ignores it"}, case=ignoring, extra=extra)
        yield Point(at={"defence": label, "server": "knows it"}, case=knowing, extra=extra)


def _price(
    small: VisionModel,
    chain: tuple[Defence, ...],
    data: tuple[Batch, Batch],
    plain: Training,
    generator: torch.Generator,
) -> dict[str, float]:
    """Accuracy, time and ε; nothing where the small network lacks what the defence acts on."""
    try:
        cost = utility(small, chain, data=data, plain=plain, generator=generator)
    except MissingExtra:
        raise
    except LeakscopeError:
        return {}
    found = {"accuracy": cost.accuracy, "time": cost.time_ratio}
    return found if cost.epsilon is None else found | {"ε": cost.epsilon}
