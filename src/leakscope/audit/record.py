"""The record of one attacked batch: what was attacked, by what, what came back and how good it was.

A record is plain data: it is written as strict JSON (``record.json``), non-finite numbers as the strings "inf", "-inf"
and "nan", and read back without torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, cast

from leakscope.errors import BadInput

__all__ = [
    "FAILED",
    "RECORD",
    "REFUSED",
    "SCHEMA",
    "SKIPPED",
    "Picture",
    "Record",
    "Target",
    "plain",
    "read_record",
    "render",
]

SCHEMA: Final = 1
"""The version of the format; readers refuse a newer one."""

RECORD: Final = "record.json"
FAILED: Final = "failed"
"""The status of a run that ended in an exception: never counted as safe."""
REFUSED: Final = "refused"
"""The status of an attack whose conditions did not hold; ``message`` gives the reason."""
SKIPPED: Final = "skipped"
"""The status of a campaign's cell that an earlier rung of the ladder made needless. Every other status is a
:class:`~leakscope.types.Status`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The attacked model: its name, a digest of all it computes with, and the images it takes."""

    name: str
    fingerprint: str
    parameters: int
    shape: tuple[int, int, int]
    num_classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One image of the batch: its label, the label the attack took it for, and the files of the matched pair.

    A label is a class; for a detector, words on its boxes.
    """

    name: str
    label: int | str
    recovered_label: int | str
    original: str
    reconstruction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One attack on one batch, as data.

    ``run`` is a digest of everything the result depends on: equal runs have equal results. ``stream`` names the random
    streams forked from ``seed``. ``energies`` are the best losses of the restarts, ``restart`` is the one that was
    kept, by its loss alone. ``trace`` holds every measured loss, one row per restart. ``scores`` is what
    ``Scores.to_json`` gives, in the order of ``pictures``. ``cell`` and ``role`` say which cell of a campaign this is
    and what for (see :mod:`leakscope.audit.cell`); both are plain for a run outside a campaign. ``depth`` is how many
    modules a client that sends features runs: of two cuts through one model, the deeper one has more.
    """

    schema: int = SCHEMA
    run: str
    status: str
    message: str
    target: Target
    client: Mapping[str, object]
    threat: str
    knows: tuple[str, ...]
    attack: str
    settings: Mapping[str, object]
    seed: int
    stream: str
    created: str
    versions: Mapping[str, str]
    cell: str = ""
    role: str = "attack"
    depth: int | None = None
    defences: tuple[Mapping[str, object], ...] = ()
    error: str | None = None
    energy: float = math.nan
    steps: int = 0
    seconds: float = 0.0
    restart: int | None = None
    energies: tuple[float, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict[str, object])
    scores: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pictures: tuple[Picture, ...] = ()
    trace: tuple[tuple[float, ...], ...] = ()

    def metric(self, name: str) -> list[float] | None:
        """The values of one metric, an image each, or ``None`` where it was not computed."""
        values = self.scores.get("metrics", {}).get(name)
        return None if values is None else [float(value) for value in values]

    def to_text(self) -> str:
        """Strict JSON that a person can read: one line per list of numbers."""
        return render(plain(self), "") + "\n"


def read_record(folder: Path) -> Record:
    """The record that was written to ``folder``; raises :class:`BadInput` where there is none that can be read."""
    path = folder / RECORD
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInput(f"There is no {RECORD} in '{folder}'.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"'{path}' cannot be read as a record: {error}") from error
    if not isinstance(content, dict) or not isinstance(schema := cast("dict[str, Any]", content).get("schema"), int):
        raise BadInput(f"'{path}' is not a record: it has no schema version.")
    if schema > SCHEMA:
        raise BadInput(f"'{path}' was written in schema {schema}; this version reads up to {SCHEMA}. Update leakscope.")
    try:
        return _record(cast("dict[str, Any]", content))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"'{path}' is damaged: {type(error).__name__} {error}.") from error


def _record(data: dict[str, Any]) -> Record:
    target = dict[str, Any](data["target"])
    target["shape"] = tuple(target["shape"])
    known = {f.name for f in fields(Record)}
    values = {key: value for key, value in data.items() if key in known}
    values["target"] = Target(**target)
    values["knows"] = tuple(data["knows"])
    values["defences"] = tuple(data.get("defences", ()))
    values["energy"] = float(data["energy"])
    values["energies"] = tuple(float(value) for value in data["energies"])
    values["pictures"] = tuple(Picture(**picture) for picture in data["pictures"])
    values["trace"] = tuple(tuple(float(value) for value in row) for row in data["trace"])
    return Record(**values)


def plain(value: object) -> object:
    """``value`` in JSON's own types; raises ``TypeError`` for anything that has no place in a record."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in cast("list[object]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"A record holds plain values only; got a {type(value).__name__}.")


def render(value: object, indent: str) -> str:
    """JSON with objects, and lists of lists or objects, spread over lines."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        entries = cast("dict[str, object]", value).items()
        lines = [f"{deeper}{json.dumps(key)}: {render(item, deeper)}" for key, item in entries]
        return "{\n" + ",\n".join(lines) + "\n" + indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in cast("list[object]", value)):
        lines = [deeper + render(item, deeper) for item in cast("list[object]", value)]
        return "[\n" + ",\n".join(lines) + "\n" + indent + "]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
