"""A configured attack as plain data: for records, for fingerprints, for people."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from leakscope.types import Observation

__all__ = ["fingerprint", "settings"]


def settings(value: object) -> object:
    """``value`` as JSON: dataclasses by field, functions by name. The same in every process."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: settings(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__} | fields
    if isinstance(value, Mapping):
        return {str(key): settings(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [settings(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Path):
        return str(value)
    return getattr(value, "__name__", type(value).__name__)


def fingerprint(attack: object, observation: Observation, generator: torch.Generator) -> str:
    """A digest of everything a run's result depends on: a checkpoint of one run is never taken for another's."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(settings(attack), sort_keys=True).encode())
    digest.update(json.dumps(settings(observation.protocol), sort_keys=True).encode())
    digest.update(json.dumps(settings(observation.defences), sort_keys=True).encode())
    labels = None if observation.labels is None else observation.labels.tolist()
    digest.update(json.dumps([sorted(observation.threat.knows), observation.input.batch_size, labels]).encode())
    digest.update(observation.model.fingerprint().encode())
    for signal in (observation.signal, *observation.rounds):
        for name, value in sorted(signal.items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    digest.update(generator.get_state().numpy().tobytes())
    return digest.hexdigest()
