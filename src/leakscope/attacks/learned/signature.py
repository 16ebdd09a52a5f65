"""What an inverter was fitted for, by which it knows what it can answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from leakscope.attacks.settings import settings
from leakscope.errors import NotApplicable
from leakscope.models import VisionModel
from leakscope.types import ClientProtocol, Defence, Observation

__all__ = ["Signature"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What an inverter was fitted for. It answers nothing else: it would return pictures that mean nothing."""

    model: str
    fingerprint: str
    input: tuple[int, ...]
    batch_size: int
    signal: tuple[tuple[str, tuple[int, ...]], ...]
    protocol: str
    defences: str

    @staticmethod
    def of(
        model: VisionModel,
        protocol: ClientProtocol,
        defences: Sequence[Defence],
        signal: Mapping[str, Tensor],
        batch_size: int,
    ) -> Signature:
        return Signature(
            model=model.name,
            fingerprint=model.fingerprint(),
            input=model.input.shape,
            batch_size=batch_size,
            signal=tuple((name, tuple(value.shape)) for name, value in signal.items()),
            protocol=json.dumps(settings(protocol), sort_keys=True),
            defences=json.dumps(settings(tuple(defences)), sort_keys=True),
        )

    def check(self, observation: Observation, *, any_weights: bool) -> None:
        """Raise :class:`NotApplicable` with what differs. Defences may: a server need not know of them."""
        seen = Signature.of(
            observation.model,
            observation.protocol,
            observation.defences,
            observation.signal,
            observation.batch_size,
        )
        if seen.input != self.input or seen.model != self.model:
            raise _differs("model", f"{self.model} on {self.input}", f"{seen.model} on {seen.input}")
        if seen.batch_size != self.batch_size:
            raise _differs("batch size", str(self.batch_size), str(seen.batch_size))
        if dict(seen.signal) != dict(self.signal):
            ours, theirs = dict(self.signal), dict(seen.signal)
            odd = next(name for name in [*ours, *theirs] if ours.get(name) != theirs.get(name))
            raise _differs("signal", f"'{odd}' as {ours.get(odd)}", str(theirs.get(odd)))
        if seen.protocol != self.protocol:
            raise _differs("protocol", self.protocol, seen.protocol)
        if seen.fingerprint != self.fingerprint and not any_weights:
            raise NotApplicable(
                f"This inverter was fitted to other weights of {self.model}. Fit it to these, or set any_weights: how "
                "far it carries over is then a guess."
            )


def _differs(what: str, fitted: str, seen: str) -> NotApplicable:
    return NotApplicable(f"This inverter was fitted to another {what}: {fitted}; the observation has {seen}.")
