"""Independent, reproducible random streams. Nothing in leakscope draws from the global generator."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager

import torch

__all__ = ["fork", "global_draws"]


def fork(generator: torch.Generator, path: str) -> torch.Generator:
    """A new stream named ``path`` (say ``"restart/3/init"``), set by the state of ``generator``, which stays as it is.

    Streams of different names are independent, so adding a draw in one place never moves the draws of another.
    """
    digest = hashlib.blake2b(path.encode(), key=hashlib.blake2b(_state(generator)).digest(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


@contextmanager
def global_draws(generator: torch.Generator) -> Generator[None]:
    """Let layers that can only draw from torch's global generator (dropout) draw from ``generator``'s state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(hashlib.blake2b(_state(generator), digest_size=7).digest(), "little"))
        yield


def _state(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()
