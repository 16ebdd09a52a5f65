"""A cell: the smallest piece of a campaign that is run, recorded and resumed by itself.

A cell is plain data, and its key is a digest of that data: the same cell has the same key in every process and on every
machine, and a changed setting or a changed file is another cell. Nothing here imports torch.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from leakscope.audit.record import RECORD, Record, read_record
from leakscope.errors import BadInput

__all__ = ["CELLS", "MANIFEST", "Cell", "Manifest", "Role", "read_manifest"]

MANIFEST: Final = "campaign.json"
CELLS: Final = "cells"


class Role(enum.StrEnum):
    """What a cell is for."""

    ATTACK = "attack"
    CONTROL = "control"
    """The same attack with its signal replaced by noise of the same norm: what comes out without any leak."""
    SELF_TEST = "self-test"
    """The same attack on a target that is known to leak to it: it must get through."""
    IDENTIFIABILITY = "identifiability"
    """No attack: how many dimensions of the images the signal determines at all."""
    COST = "cost"
    """No attack: what the target's defences cost a small network that is trained with them and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One attack (or control, self-test, analysis) on one batch.

    The names (``target``, ``model_name``, …) are the campaign's own, for people. The tables are what they stand for:
    ``model`` (name, weights, image_size, …), ``images`` (from, labels, batch_size, …), ``batch`` which batch of them,
    ``client`` and ``defences`` as the registries of the client room take them, ``knows`` and ``public`` the attacker's
    knowledge, ``attack`` with ``options`` as :func:`leakscope.attack` takes them. ``files`` are digests of the files
    these name. ``rung`` orders the ladder within ``group``; a rung is skipped once a lower one has settled the group.
    """

    role: Role
    target: str
    model_name: str
    images_name: str
    client_name: str
    defence_name: str
    attacker: str
    attack_name: str
    model: Mapping[str, Any]
    images: Mapping[str, Any]
    batch: int
    client: Mapping[str, Any]
    defences: tuple[Mapping[str, Any], ...] = ()
    knows: tuple[str, ...] = ()
    public: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rounds: int = 1
    attack: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0
    seconds: float | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    rung: int = 0

    @property
    def key(self) -> str:
        """The content address. Names of pieces and the place on the ladder do not change what a cell computes; the
        target's is kept, so that two targets that happen to be alike both have their cells."""
        content = asdict(self)
        for name in ("model_name", "images_name", "client_name", "defence_name", "attack_name", "rung"):
            content.pop(name)
        return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=10).hexdigest()

    @property
    def group(self) -> tuple[str, str, str, int, int]:
        """Cells whose ladder is climbed together: one role on one target, attacker, batch and seed."""
        return (str(self.role), self.target, self.attacker, self.batch, self.seed)

    @property
    def title(self) -> str:
        """For progress and tables: ``inverting-gradients on vit/photos/sgd #0``."""
        what = self.attack_name or str(self.role)
        kind = "" if self.role is Role.ATTACK or not self.attack_name else f" ({self.role})"
        return f"{what}{kind} on {self.target} #{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """``campaign.json``: the campaign as it was read, and its cells in the order they were planned."""

    schema: int = 1
    name: str
    created: str
    campaign: Mapping[str, Any]
    cells: tuple[Cell, ...]

    def to_text(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def record(self, folder: Path, cell: Cell) -> Record | None:
        """The record of ``cell`` below the campaign's ``folder``, or ``None`` while there is none."""
        place = folder / CELLS / cell.key
        return read_record(place) if (place / RECORD).exists() else None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the campaign in ``folder``; raises :class:`BadInput` where there is none that can be read."""
    path = folder / MANIFEST
    try:
        content = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        cells = tuple(_cell(cast("dict[str, Any]", item)) for item in content.pop("cells"))
        return replace(Manifest(**content, cells=()), cells=cells)
    except FileNotFoundError as error:
        raise BadInput(f"'{folder}' holds no campaign: there is no {MANIFEST} in it.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"'{path}' cannot be read as a campaign's manifest: {error}.") from error


def _cell(data: dict[str, Any]) -> Cell:
    values: dict[str, Any] = dict(data)
    values["role"] = Role(data["role"])
    for name in ("defences", "knows"):
        values[name] = tuple(data[name])
    return Cell(**values)
