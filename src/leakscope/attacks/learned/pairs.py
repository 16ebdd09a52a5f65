"""Input–signal pairs: the client replayed on public images, many clients in one pass.

Per-sample gradients come from one vectorised backward pass (``torch.func``), never from one replay after the other.
Clients that cannot be vectorised (local training, defences that change what is trained on) are replayed in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor
from torch.func import grad, vmap  # pyright: ignore[reportUnknownVariableType]

from leakscope.client.fedsgd import FedSGD
from leakscope.client.precision import rounded
from leakscope.client.round import run_round
from leakscope.client.split import Split
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import Batch, ClientProtocol, Defence, Setting, Signal

__all__ = ["Pairs", "replay_many"]

_BYTES: Final = 256 * 2**20
"""About how much memory the signals of one chunk may take."""


def replay_many(
    model: VisionModel,
    images: Tensor,
    labels: Tensor,
    *,
    protocol: ClientProtocol,
    defences: Sequence[Defence] = (),
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """What N clients send, each with its own batch: images (N, B, C, H, W), labels (N, B) ↦ {name: (N, …)}.

    The same as N calls of :func:`leakscope.observe`, up to rounding and the draws of stochastic defences.
    """
    images = images.to(device=model.device, dtype=model.dtype)
    labels = labels.to(model.device)
    plain = all(type(defence).prepare is Defence.prepare for defence in defences)
    together = _together(model, images, labels, protocol, generator) if plain else None
    if together is None:
        sent = [
            run_round(_setting(model, x, y, protocol), defences, generator=fork(generator, f"client/{index}"))[1]
            for index, (x, y) in enumerate(zip(images, labels, strict=True))
        ]
    elif not defences:
        return together
    else:
        sent = [
            _defended(
                {name: value[index] for name, value in together.items()},
                _setting(model, images[index], labels[index], protocol),
                defences,
                fork(generator, f"client/{index}"),
            )
            for index in range(len(images))
        ]
    return {name: torch.stack([one[name] for one in sent]) for name in sent[0]}


def _together(
    model: VisionModel, images: Tensor, labels: Tensor, protocol: ClientProtocol, generator: torch.Generator
) -> dict[str, Tensor] | None:
    """All clients in one pass, or ``None`` where that is not possible."""
    if isinstance(protocol, FedSGD) and not protocol.stochastic:
        return _gradients(model, images, labels, protocol)
    if isinstance(protocol, Split) and protocol.mode == "eval" and not model.anatomy.mixes_in_evaluation:
        sent = protocol.replay(model, images.flatten(0, 1), labels.flatten(), generator=fork(generator, "client"))
        return {name: value.detach().unflatten(0, images.shape[:2]) for name, value in sent.items()}
    return None


def _gradients(model: VisionModel, images: Tensor, labels: Tensor, protocol: FedSGD) -> dict[str, Tensor]:
    """∇θ L of every client's batch by one vmapped backward pass; in train mode each has its own buffers."""
    parameters = protocol.leaves(model)
    # Written in place by each client: one copy for each.
    buffers = {
        name: value.expand(len(images), *value.shape).clone() for name, value in protocol.fresh_buffers(model).items()
    }

    def loss(
        weights: dict[str, Tensor], own: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return protocol.loss(model, x, y, parameters=weights, buffers=own), own

    with model.differentiable_twice():  # the plain formula of attention, which vmap knows
        found, written = vmap(grad(loss, has_aux=True), in_dims=(None, 0, 0, 0))(parameters, buffers, images, labels)
    sent: dict[str, Tensor] = {**found, **written} if protocol.share_buffers else dict(found)
    return {name: rounded(value.detach(), protocol.precision) for name, value in sent.items()}


def _setting(model: VisionModel, images: Tensor, labels: Tensor, protocol: ClientProtocol) -> Setting:
    return Setting(model=model, images=images, labels=labels, protocol=protocol, aware=protocol, unaware=protocol)


def _defended(
    signal: Signal, setting: Setting, defences: Sequence[Defence], generator: torch.Generator
) -> dict[str, Tensor]:
    for index, defence in enumerate(defences):
        signal = defence(signal, setting=setting, generator=fork(generator, f"defence/{index}"))
    return dict(signal)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """``count`` clients with ``batch_size`` public images each, in chunks that are made one at a time.

    Every image serves once before any serves twice; a later pass draws other batches, and the defences draw anew. The
    images of a batch stand in the order of their labels: a gradient does not tell the order, so any will do, and this
    one can be learned. A chunk depends on the seed and its own number alone, so a broken run goes on where it was.
    ``sent``: the names that reach the server, where the client keeps some to itself; all by default.
    """

    model: VisionModel
    protocol: ClientProtocol
    public: Batch
    batch_size: int
    count: int
    defences: tuple[Defence, ...] = ()
    sent: frozenset[str] | None = None
    generator: torch.Generator

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= len(self.public):
            raise BadInput(
                f"The client's batch holds {self.batch_size} images; {len(self.public)} public images were given, "
                "and at least one whole batch is needed."
            )
        if self.count < 1:
            raise BadInput(f"{self.count} pairs were asked for; at least 1 is needed.")

    @property
    def chunk(self) -> int:
        """How many clients are replayed in one pass."""
        size = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return max(1, min(256, _BYTES // max(size, 1)))

    def indices(self) -> Tensor:
        """Which public images each client holds, (count, B)."""
        each = len(self.public) // self.batch_size  # whole batches in one pass over the images
        passes = -(-self.count // each)
        rows = [
            torch.randperm(len(self.public), generator=fork(self.generator, f"pass/{one}"))[: each * self.batch_size]
            for one in range(passes)
        ]
        indices = torch.cat(rows).view(-1, self.batch_size)[: self.count]
        return indices.gather(1, self.public.labels[indices].argsort(dim=1, stable=True))

    def chunks(self, start: int = 0) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """(indices (n, B), signal {name: (n, …)}) from the chunk numbered ``start`` on."""
        everyone = self.indices().split(self.chunk)
        for number in range(start, len(everyone)):
            indices = everyone[number]
            yield indices, self.replay(indices, f"chunk/{number}")

    def replay(self, indices: Tensor, stream: str) -> dict[str, Tensor]:
        """What the clients with these images (n, B) send, {name: (n, …)}."""
        signal = replay_many(
            self.model,
            self.public.images[indices],
            self.public.labels[indices],
            protocol=self.protocol,
            defences=self.defences,
            generator=fork(self.generator, stream),
        )
        return {name: value for name, value in signal.items() if self.sent is None or name in self.sent}
