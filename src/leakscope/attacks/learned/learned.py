"""``LearnedAttack``: a method that is fitted on public data first, and then reads every update in one forward pass."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, final

import torch

from leakscope.attacks.learned.cache import Cache, Chunk, joined
from leakscope.attacks.learned.fitting import MOST_HELD_OUT, Fitting, split_public
from leakscope.attacks.learned.inverter import InverseNetwork, Inverter
from leakscope.attacks.learned.pairs import Pairs
from leakscope.attacks.learned.signature import Signature
from leakscope.attacks.learned.synthesis import Synthesis
from leakscope.attacks.learned.training import Training, train
from leakscope.attacks.optimisation import Checkpoint
from leakscope.attacks.settings import settings
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.random import fork
from leakscope.types import (
    Batch,
    Callback,
    ClientProtocol,
    Defence,
    Knows,
    Observation,
    Reconstruction,
)

__all__ = ["Architecture", "LearnedAttack", "digest_of"]

log = logging.getLogger(__name__)

_fitted: dict[str, Inverter] = {}
_KEPT: Final = 4


class Architecture(Protocol):
    """What makes one learned attack differ from another: the network it builds for a model and its signal."""

    def build(
        self, model: VisionModel, shapes: Mapping[str, tuple[int, ...]], batch_size: int, generator: torch.Generator
    ) -> InverseNetwork:
        """The untrained network; raises :class:`NotApplicable` for a model or signal it is not made for."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedAttack:
    """A network that is trained on pairs of public images and the signals that a client makes of them.

    ``fit`` needs the model and the protocol, but no observation: an inverter is made before any update arrives, and
    serves for all of them. Called on an observation, the attack fits itself to the observation's public images first,
    from ``seed`` alone; the same fit is not repeated within a process.

    ``pairs``: how many clients are replayed; 0 is one for every whole batch of public images. ``cache``: a folder for
    pairs, and ``cache_gib`` the most it may hold. ``options`` are those of the recipe that the network depends on: a
    saved inverter is built again from them. ``synthesis``: in place of public images, ones that are made up from the
    model itself; the server then needs no data at all. ``seconds``: a budget for the whole fit; half of it at most goes
    to making images up. Only replays and closed forms are not cut short.
    """

    name: str
    architecture: Architecture
    training: Training
    steps: int
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    pairs: int = 0
    seed: int = 0
    cache: Path | None = None
    cache_gib: float = 8.0
    any_weights: bool = False
    synthesis: Synthesis | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value, low in (("steps", self.steps, 1), ("pairs", self.pairs, 0), ("seed", self.seed, 0)):
            if value < low:
                raise BadInput(f"{name} is {value}; it must be at least {low}.")

    def fit(
        self,
        public: Batch | None,
        protocol: ClientProtocol,
        *,
        model: VisionModel,
        batch_size: int = 1,
        defences: Sequence[Defence] = (),
        sent: Collection[str] | None = None,
        generator: torch.Generator,
        callback: Callback | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Inverter:
        """Replay the client on ``public`` images, train on what it sends, return the attack.

        ``sent``: the names that reach the server, where the client is known to keep some to itself.
        """
        began = time.monotonic()
        if self.synthesis is not None:
            half = None if self.seconds is None else self.seconds / 2
            public = self.synthesis(model, generator=fork(generator, "synthesis"), callback=callback, seconds=half)
        if public is None:
            raise BadInput(f"{self.name} is to be fitted, and no public images were given.")
        trained, held = split_public(public, batch_size, fork(generator, "split"))
        count = self.pairs or len(trained) // batch_size
        sets = [
            Pairs(
                model=model,
                protocol=protocol,
                public=images,
                batch_size=batch_size,
                count=number,
                defences=tuple(defences),
                sent=None if sent is None else frozenset(sent),
                generator=fork(generator, name),
            )
            for name, images, number in (
                ("pairs/train", trained, count),
                ("pairs/held out", held, max(1, min(MOST_HELD_OUT, len(held) // batch_size))),
            )
        ]
        first = sets[0].replay(sets[0].indices()[:1], "first")  # its names and shapes are those of all
        shapes = {name: tuple(value.shape[1:]) for name, value in first.items()}
        signature = Signature.of(model, protocol, defences, {n: v[0] for n, v in first.items()}, batch_size)
        network = self.architecture.build(model, shapes, batch_size, fork(generator, "network"))
        network.to(device=model.device, dtype=model.dtype)
        key = self._key(signature, public, generator)
        rows = [self._rows(signature, one, network) for one in sets]

        def replay(which: int, chosen: torch.Tensor) -> dict[str, torch.Tensor]:
            # The draws depend on which pairs were chosen alone: other ones every epoch, the same after a kill.
            stream = f"step/{','.join(str(index) for index in chosen.tolist())}"
            return sets[which].replay(rows[which][0][chosen], stream)

        fitting = Fitting(
            network=network,
            rows=[values for _, values in rows],
            images=[one.public.images[indices].to(model.mean) for one, (indices, _) in zip(sets, rows, strict=True)],
            replay=replay if defences and not network.replays else None,
        )
        network.start(fitting.rows[0], fitting.images[0])
        history = train(
            fitting,
            network.stages(self.steps),
            self.training,
            generator=fork(generator, "training"),
            callback=callback,
            checkpoint=checkpoint,
            key=key,
            seconds=None if self.seconds is None else self.seconds - (time.monotonic() - began),
        )
        return Inverter(
            attack=self.name,
            options=self.options,
            signature=signature,
            network=network.eval(),
            mean=trained.images.mean(0).to(model.mean),
            held_out=history.best,
            steps=history.step,
            seconds=history.seconds,
            trace=tuple(history.rows),
            needs=self.needs,
            any_weights=self.any_weights,
            out_of_time=history.out_of_time,
        )

    @property
    def needs(self) -> tuple[Knows, ...]:
        """What a server must know to fit it, besides the batch size."""
        return (Knows.PUBLIC_DATA,) if self.synthesis is None else ()

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        """Fit to the observation's public images, then invert the observation."""
        observation.require(Knows.BATCH_SIZE, *self.needs)
        seeded = torch.Generator().manual_seed(self.seed)
        signature = Signature.of(
            observation.model,
            observation.protocol,
            observation.defences,
            observation.signal,
            observation.batch_size,
        )
        key = self._key(signature, observation.public if self.synthesis is None else None, seeded)
        if key not in _fitted:
            while len(_fitted) >= _KEPT:
                _fitted.pop(next(iter(_fitted)))
            _fitted[key] = self.fit(
                observation.public,
                observation.protocol,
                model=observation.model,
                batch_size=observation.batch_size,
                defences=observation.defences,
                sent=observation.signal.keys(),  # what a client withholds, a server sees by its absence
                generator=seeded,
                callback=callback,
            )
        return _fitted[key](observation, generator=generator)

    def _rows(self, signature: Signature, pairs: Pairs, network: InverseNetwork) -> Chunk:
        """What the network reads of every pair, replayed or from the cache."""
        if not network.replays:
            return pairs.indices(), {}

        def make(start: int) -> Iterator[Chunk]:
            for indices, signal in pairs.chunks(start):
                with torch.no_grad():
                    yield indices, network.read(signal)

        if self.cache is None:
            return joined(list(make(0)))
        # How long it is trained does not change what is read: fits of different length share their pairs.
        key = digest_of([settings(self.architecture), settings(signature), pairs.count], pairs.public, pairs.generator)
        return Cache(folder=self.cache, limit=int(self.cache_gib * 2**30)).gather(key, make)

    def _key(self, signature: Signature, public: Batch | None, generator: torch.Generator) -> str:
        """A digest of everything a fit depends on."""
        method = replace(self, cache=None, cache_gib=0.0, any_weights=False)
        return digest_of([settings(method), settings(signature)], public, generator)


def digest_of(plain: object, public: Batch | None, generator: torch.Generator) -> str:
    """A digest of plain data, images and the draws to come."""
    digest = hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16)
    for part in (generator.get_state(), *(() if public is None else (public.images, public.labels))):
        digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
