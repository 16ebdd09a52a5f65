"""An update from two state dicts, before and after a client's training, from whatever framework wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from leakscope.capture.files import LARGEST, read_state
from leakscope.capture.update import Fact, Update

__all__ = ["update_from_files", "update_from_states"]


def update_from_states(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    *,
    round: int | None = None,
    client: str = "",
    metadata: Mapping[str, Fact] | None = None,
) -> Update:
    """The update of a client that was sent the state ``before`` and sent back the state ``after``."""
    return Update(
        kind="weights",
        sent={name: value.detach().clone() for name, value in after.items()},
        received={name: value.detach().clone() for name, value in before.items()},
        round=round,
        client=client,
        source="state dicts",
        metadata=dict(metadata or {}),
    )


def update_from_files(
    before: Path | str, after: Path | str, *, metadata: Mapping[str, Fact] | None = None, limit: int = LARGEST
) -> Update:
    """The same from two files: safetensors, or torch.save of a state dict (read without running any of it)."""
    first, second = read_state(Path(before), limit=limit), read_state(Path(after), limit=limit)
    return update_from_states(first, second, metadata=metadata)
