"""What really crossed the wire in one round of one client, and its form on disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast, final, get_args

import safetensors.torch
from torch import Tensor

from leakscope.capture.files import LARGEST, read_json, read_tensors
from leakscope.errors import BadInput, UnknownName

__all__ = ["MANIFEST", "Fact", "Kind", "Update", "load_update", "save_in_round", "save_update"]

Kind = Literal["weights", "delta", "gradient"]
Fact = str | int | float | bool

MANIFEST: Final = "manifest.json"
_FORMAT: Final = "leakscope-update"
_VERSION: Final = 1
_PARTS: Final = ("sent", "received")
_KEYS: Final = frozenset({"format", "version", "kind", "round", "client", "source", "metadata", "files", "sha256"})
_LONGEST: Final = 4096


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One client's reply to the server in one round, by the names of the model's state dict.

    ``kind`` says what ``sent`` holds: the new ``weights``, the ``delta`` to the old ones, or a ``gradient``. Buffers
    in it (running statistics) are new values, or differences in a ``delta``. ``received`` is the state that the server
    had sent out, empty where it was not captured. ``metadata`` are plain facts that the framework told (``lr``,
    ``steps``, ``examples``, …).
    """

    kind: Kind
    sent: Mapping[str, Tensor]
    received: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    round: int | None = None
    client: str = ""
    source: str = ""
    metadata: Mapping[str, Fact] = field(default_factory=dict[str, Fact])

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise BadInput(f"The kind of an update is '{self.kind}'; accepted: {', '.join(get_args(Kind))}.")
        if not self.sent:
            raise BadInput("The update is empty: nothing was sent. An audit of nothing would prove nothing.")
        for key, value in self.metadata.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise BadInput(f"The metadata '{key}' is {value}; it must be finite.")

    @property
    def nbytes(self) -> int:
        """The size of what was sent."""
        return sum(value.numel() * value.element_size() for value in self.sent.values())

    def fact(self, name: str) -> float | None:
        """A number among the metadata, if it was told."""
        value = self.metadata.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def save_update(update: Update, folder: Path | str) -> Path:
    """Write the tensors and ``manifest.json`` below ``folder``, the manifest last: without one it is unfinished."""
    folder = Path(folder)
    if (folder / MANIFEST).exists():
        raise BadInput(f"'{folder}' holds an update already. Captures are never overwritten: choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, object]] = {}
    for part in _PARTS:
        tensors: Mapping[str, Tensor] = getattr(update, part)
        if tensors:
            # Copies: safetensors refuses tensors that share memory, as tied weights do.
            raw = safetensors.torch.save({name: value.detach().cpu().clone() for name, value in tensors.items()})
            _write(folder / f"{part}.safetensors", raw)
            files[part] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "kind": update.kind,
        "round": update.round,
        "client": update.client,
        "source": update.source,
        "metadata": dict(update.metadata),
        "files": files,
    }
    manifest["sha256"] = _digest(manifest)
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    _write(folder / MANIFEST, text.encode("utf-8"))
    return folder


def save_in_round(update: Update, root: Path) -> Path:
    """Write the update to its place among a federation's: ``root/round-0001/client-NAME``."""
    name = re.sub(r"[^0-9A-Za-z-]+", "-", update.client)[:80]
    return save_update(update, root / f"round-{update.round or 0:04d}" / f"client-{name}")


def load_update(folder: Path | str, *, limit: int = LARGEST) -> Update:
    """Read what :func:`save_update` wrote, believing none of it: sizes first, digests, then names and types.

    File names are fixed, so no manifest can point elsewhere. ``limit``: the bytes of the largest file that is read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BadInput(
            f"'{folder}' is not the folder of a captured update ({MANIFEST} and safetensors). "
            "A pair of state dicts is given as two files: before and after."
        )
    manifest = read_json(folder / MANIFEST)
    _check_manifest(folder, manifest)
    tensors: dict[str, dict[str, Tensor]] = {}
    for part, entry in manifest["files"].items():
        tensors[part] = read_tensors(folder / f"{part}.safetensors", limit=limit, sha256=entry["sha256"])
    return Update(
        kind=manifest["kind"],
        sent=tensors["sent"],
        received=tensors.get("received", {}),
        round=manifest["round"],
        client=manifest["client"],
        source=manifest["source"],
        metadata=manifest["metadata"],
    )


def _check_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    if manifest.get("format") != _FORMAT:
        raise BadInput(f"'{folder / MANIFEST}' is no manifest of a captured update (its format is not '{_FORMAT}').")
    version = manifest.get("version")
    if type(version) is not int or not 1 <= version <= _VERSION:
        raise BadInput(f"'{folder / MANIFEST}' has version {version!r:.40}; this release reads up to {_VERSION}.")
    for key in manifest:
        if key not in _KEYS:
            raise UnknownName(f"key in '{folder / MANIFEST}'", key[:80], _KEYS)
    missing = sorted(_KEYS - set(manifest))
    if missing:
        raise BadInput(f"'{folder / MANIFEST}' lacks {', '.join(missing)}.")
    if manifest["sha256"] != _digest(manifest):
        raise BadInput(
            f"'{folder / MANIFEST}' was changed or damaged since it was written (SHA-256 differs). To change an "
            "update, save it anew."
        )
    wrong = [
        key
        for key, good in (
            ("kind", manifest["kind"] in get_args(Kind)),
            ("round", manifest["round"] is None or (type(manifest["round"]) is int and manifest["round"] >= 0)),
            ("client", _is_text(manifest["client"])),
            ("source", _is_text(manifest["source"])),
            ("metadata", _is_facts(manifest["metadata"])),
            ("files", _is_files(manifest["files"])),
        )
        if not good
    ]
    if wrong:
        raise BadInput(f"'{folder / MANIFEST}' has unusable values for {', '.join(wrong)}.")


def _digest(manifest: Mapping[str, Any]) -> str:
    """Of everything but itself. It shows damage; against forgery there is the replay."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("utf-8")).hexdigest()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST and (value == "" or value.isprintable())


def _is_facts(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    facts = cast("dict[str, object]", value)
    return all(
        _is_text(key)
        and (_is_text(v) or isinstance(v, bool) or (isinstance(v, int | float) and math.isfinite(v) and abs(v) < 1e18))
        for key, v in facts.items()
    )


def _is_files(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    files = cast("dict[str, object]", value)
    return (
        "sent" in files
        and set(files) <= set(_PARTS)
        and all(
            isinstance(entry, dict)
            and set(cast("dict[str, object]", entry)) == {"bytes", "sha256"}
            and isinstance(cast("dict[str, object]", entry)["sha256"], str)
            for entry in files.values()
        )
    )


def _write(path: Path, raw: bytes) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(raw)
    part.replace(path)
