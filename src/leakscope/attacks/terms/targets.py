"""What a candidate's normalisation statistics should be, by module name: three ways for a server to know."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from leakscope.attacks.labels import known_or_recovered
from leakscope.attacks.terms.matching import as_seen
from leakscope.client.augmentation import Augmented
from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.errors import BadInput, NotApplicable
from leakscope.functional.distances import cosine
from leakscope.functional.statistics import NORMS, Moments, batch_moments, moments
from leakscope.models.watch import catching
from leakscope.types import ClientProtocol, Knows, Observation

__all__ = ["Targets", "batch_norms", "check_exact", "exact", "norms", "proxy", "running"]

Targets = dict[str, Moments]

_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def batch_norms(observation: Observation) -> dict[str, BatchNorm]:
    """The BatchNorm layers that keep running statistics."""
    return {
        name: module
        for name, module in observation.model.named_modules()
        if isinstance(module, _BATCH_NORMS) and module.running_mean is not None and module.running_var is not None
    }


def norms(observation: Observation) -> dict[str, nn.Module]:
    """Every normalisation layer whose statistics can be taken."""
    return {name: module for name, module in observation.model.named_modules() if isinstance(module, NORMS)}


def running(observation: Observation) -> Targets:
    """The model's own running statistics: what training data looked like, on the whole (Huang et al. 2021)."""
    targets = {name: _kept(layer) for name, layer in batch_norms(observation).items()}
    if not targets:
        raise NotApplicable(f"{observation.model.name} has no BatchNorm layer with running statistics.")
    if all(bool((mean == 0).all() and (var == 1).all()) for mean, var in targets.values()):
        raise NotApplicable(
            f"The running statistics of {observation.model.name} are untrained (all zeros and ones): they say "
            "nothing about images. Load trained weights, or leave this term out."
        )
    return targets


def check_exact(observation: Observation, *, approximate: bool = False) -> None:
    """Raise where the batch's own statistics cannot be read off what the client shared."""
    observation.require(Knows.BN_STATS, Knows.BATCH_SIZE)
    name, layers = observation.model.name, batch_norms(observation)
    if any(isinstance(module, nn.SyncBatchNorm) for _, module in observation.model.named_modules()):
        raise NotApplicable(
            f"{name} has SyncBatchNorm: its statistics are those of every process together, not of this client's batch."
        )
    if not layers:
        raise NotApplicable(f"{name} has no BatchNorm layer with running statistics.")
    missing = [n for n in layers if f"{n}.running_mean" not in observation.signal]
    if missing:
        raise NotApplicable(
            f"The client did not share the running statistics of '{missing[0]}' (it does so in train mode, with "
            "share_buffers): use proxy or running statistics."
        )
    sizes = _passes(observation.protocol, observation.batch_size)
    seen = {_steps(observation, n, layer, len(sizes)) for n, layer in layers.items()}
    if not approximate and (sizes != (observation.batch_size,) or seen != {1}):
        raise NotApplicable(
            f"The client ran its BatchNorm layers {max(seen)} times, on {' + '.join(map(str, sizes[:8]))} of "
            f"{observation.batch_size} images: its running statistics are not those of one pass over the whole batch. "
            "approximate=True takes their weighted mean for it."
        )


def exact(observation: Observation, *, approximate: bool = False) -> Targets:
    """The client's own batch statistics, from the running statistics it shared (Valadi et al. 2025).

    They hold to rounding for one step on the whole batch; where there were more, to what ``approximate`` allows.
    """
    check_exact(observation, approximate=approximate)
    layers = batch_norms(observation)
    size = min(_passes(observation.protocol, observation.batch_size))
    blank = torch.zeros((1, *observation.input.shape), device=observation.model.device, dtype=observation.model.dtype)
    shapes = _inputs(observation, blank, tuple(layers), training=False)
    targets: Targets = {}
    for name, layer in layers.items():
        if name not in shapes:  # a layer that this model never runs
            continue
        sent = observation.signal
        tracked = layer.num_batches_tracked
        targets[name] = batch_moments(
            _kept(layer),
            (sent[f"{name}.running_mean"], sent[f"{name}.running_var"]),
            momentum=layer.momentum,
            count=size * shapes[name].numel() // layer.num_features,
            steps=_steps(observation, name, layer, len(_passes(observation.protocol, observation.batch_size))),
            tracked=0 if tracked is None else int(tracked),
        )
    return targets


def proxy(observation: Observation, *, candidates: int, keep: int, seed: int) -> Targets:
    """The mean statistics of those public batches whose update is most like the observed one (Valadi et al. 2025).

    ``candidates`` batches of the client's size are drawn from the public images and put through the client, under the
    labels that the client is known or believed to have: what is compared is images. The ``keep`` best by cosine count.
    """
    observation.require(Knows.PUBLIC_DATA, Knows.BATCH_SIZE)
    layers, public, size = norms(observation), observation.public, observation.batch_size
    if not layers:
        raise NotApplicable(f"{observation.model.name} has no normalisation layer.")
    if public is None or len(public) < size or public.images.shape[1:] != observation.input.shape:
        given = "none" if public is None else f"{len(public)} of {tuple(public.images.shape[1:])}"
        raise BadInput(
            f"Proxy statistics need at least {size} public images of {observation.input.shape}, a batch of the "
            f"client's size; there are {given}."
        )
    model, generator = observation.model, torch.Generator().manual_seed(seed)
    labels = known_or_recovered(observation, generator).values.to(model.device)
    pool = public.images.to(device=model.device, dtype=model.dtype)
    found: list[tuple[float, int, Tensor]] = []
    for index in range(candidates):
        images = pool[torch.randperm(len(pool), generator=generator)[:size]]
        found.append((_distance(observation, images, labels), index, images))
    best = [images for _, _, images in sorted(found, key=lambda one: one[:2])[:keep]]
    training = getattr(observation.protocol, "mode", "eval") == "train"
    kept: list[Targets] = []
    for images in best:
        features = _inputs(observation, images, tuple(layers), training=training)
        kept.append({name: moments(layers[name], value) for name, value in features.items()})
    return {
        name: (torch.stack([one[name][0] for one in kept]).mean(0), torch.stack([one[name][1] for one in kept]).mean(0))
        for name in kept[0]
    }


def _distance(observation: Observation, images: Tensor, labels: Tensor) -> float:
    """1 − cosine of the update of these images and the observed one."""
    replayed = as_seen(observation, observation.protocol.replay(observation.model, images, labels))
    names = [name for name in observation.gradients if name in replayed]
    if not names:
        raise NotApplicable("There is no parameter's gradient in the signal to align public batches with.")
    return float(cosine([replayed[n].detach() for n in names], [observation.signal[n] for n in names]))


def _inputs(observation: Observation, images: Tensor, names: tuple[str, ...], *, training: bool) -> dict[str, Tensor]:
    """What flows into these modules when the model sees the whole of ``images``."""
    model = observation.model
    with torch.no_grad(), catching(model.module, names) as caught, model.mode(training):
        model.functional({}, {name: buffer.clone() for name, buffer in model.named_buffers()}, images)
    return caught


def _kept(layer: BatchNorm) -> Moments:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return layer.running_mean, layer.running_var


def _passes(protocol: ClientProtocol, size: int) -> tuple[int, ...]:
    """How many images each forward pass of the client took, one number for each."""
    if isinstance(protocol, Augmented):
        return _passes(protocol.client, size)
    if isinstance(protocol, FedSGD):
        return (size,)
    if isinstance(protocol, FedAvg):
        return tuple(len(part) for step in protocol.plan(size) for part in step.batches)
    raise NotApplicable(f"What {type(protocol).__name__} shares of running statistics is not that of one client.")


def _steps(observation: Observation, name: str, layer: BatchNorm, believed: int) -> int:
    """How often the layer moved its running statistics: as its counter says, where that was shared."""
    counter = observation.signal.get(f"{name}.num_batches_tracked")
    if counter is None or layer.num_batches_tracked is None:
        return believed
    return max(int(counter) - int(layer.num_batches_tracked), 1)
