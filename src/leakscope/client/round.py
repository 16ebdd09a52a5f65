"""One round of a client that defends itself: prepare, train, change the signal."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from leakscope.random import fork
from leakscope.types import Defence, Setting, Signal

__all__ = ["run_round"]


def run_round(
    setting: Setting, defences: Sequence[Defence], *, generator: torch.Generator
) -> tuple[Setting, dict[str, torch.Tensor]]:
    """What the client did in the end, and what it sends. Defences act in order, each with a stream of its own."""
    for index, defence in enumerate(defences):
        setting = defence.prepare(setting, generator=fork(generator, f"prepare/{index}"))
    signal: Signal = setting.protocol.replay(
        setting.model, setting.images, setting.labels, generator=fork(generator, "client")
    )
    for index, defence in enumerate(defences):
        signal = defence(signal, setting=setting, generator=fork(generator, f"defence/{index}"))
    return setting, {name: value.detach() for name, value in signal.items()}
