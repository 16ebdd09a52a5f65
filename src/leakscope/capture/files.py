"""Files nobody has to trust: every size is checked before anything is allocated, and no pickled code is ever run."""

from __future__ import annotations

import hashlib
import json
import math
import pickletools
import stat
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from leakscope.errors import BadInput
from leakscope.models.text import as_names
from leakscope.models.weights import read_weights

__all__ = ["LARGEST", "read_json", "read_state", "read_tensors"]

LARGEST: Final = 4 * 2**30
"""Bytes of the largest file that is read, unless the caller says otherwise."""

_MANIFEST: Final = 2**20
_HEADER: Final = 32 * 2**20
_LONGEST_NAME: Final = 512
_ITEMSIZE: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4, "F64": 8,
}  # fmt: skip
# All that a state dict saved by torch.save names. Torch's own weights-only reader allows more, some of which
# allocates whatever size the file asks for.
_GLOBALS: Final = frozenset(
    {("collections", "OrderedDict"), ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter")}
    | {("torch", f"{kind}Storage") for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char")}
    | {("torch", "ByteStorage"), ("torch", "BoolStorage")}
)


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object; a name that occurs twice is refused, and so are NaN and infinity."""
    raw = _bytes(path, _MANIFEST)
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise BadInput(f"'{path}' is nested too deeply to be a manifest.") from error
    except (UnicodeDecodeError, ValueError) as error:  # BadInput from the hooks is a ValueError, too
        raise BadInput(f"'{path}' is not readable as JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadInput(f"'{path}' holds a JSON {type(found).__name__}; a manifest is an object.")
    return cast("dict[str, Any]", found)


def read_tensors(path: Path, *, limit: int = LARGEST, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file of at most ``limit`` bytes; with ``sha256``, only if that is its digest."""
    raw = _bytes(path, limit)
    if sha256 is not None and hashlib.sha256(raw).hexdigest() != sha256:
        raise BadInput(f"'{path}' is not the file its manifest describes (SHA-256 differs): damaged, or exchanged.")
    _check_header(path, raw)
    try:
        return safetensors.torch.load(raw)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise BadInput(f"'{path}' is not a readable safetensors file: {error}") from error


def read_state(path: Path, *, limit: int = LARGEST) -> dict[str, Tensor]:
    """A state dict from a safetensors file, or from what torch.save makes of one."""
    if path.suffix == ".safetensors":
        return read_tensors(path, limit=limit)
    _check_regular(path, limit)
    _check_pickle(path, limit)
    found = read_weights(path)
    _check_loaded(path, found, limit)
    return {name: value.detach().contiguous() for name, value in found.items()}


def _check_regular(path: Path, limit: int) -> None:
    try:
        status = path.lstat()
    except (OSError, ValueError) as error:
        raise BadInput(f"There is no file '{path}'.") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise BadInput(f"'{path}' is {kind}; only regular files are read. Copy the file itself into place.")
    if status.st_size > limit:
        raise BadInput(f"'{path}' has {status.st_size:,} bytes; at most {limit:,} are read.")


def _bytes(path: Path, limit: int) -> bytes:
    _check_regular(path, limit)
    with path.open("rb") as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:  # it grew while it was read
        raise BadInput(f"'{path}' has more than {limit:,} bytes.")
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadInput(f"the name '{key[:80]}' occurs twice")
        found[key] = value
    return found


def _no_constant(text: str) -> None:
    raise BadInput(f"{text} is not a number")


def _check_header(path: Path, raw: bytes) -> None:
    """What the file says of itself must hold before any of it is believed: each name once, each byte in one tensor."""
    if len(raw) < 8:
        raise BadInput(f"'{path}' has {len(raw)} bytes: it is cut off, or no safetensors file.")
    length = int.from_bytes(raw[:8], "little")
    if length > min(_HEADER, len(raw) - 8):
        raise BadInput(
            f"'{path}' announces a header of {length:,} bytes and has {len(raw) - 8:,}: cut off, or not safetensors."
        )
    try:
        header = json.loads(raw[8 : 8 + length].decode("utf-8"), object_pairs_hook=_unique)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise BadInput(f"'{path}' has an unreadable header: {error}") from error
    if not isinstance(header, dict):
        raise BadInput(f"'{path}' has a header that is no JSON object.")
    entries = cast("dict[str, Any]", header)
    entries.pop("__metadata__", None)
    end = 0
    for start, stop, name in sorted(_span(path, name, entry) for name, entry in entries.items()):
        if start != end:
            raise BadInput(f"'{path}': the bytes of '{name}' overlap another tensor's or leave a gap.")
        end = stop
    if end != len(raw) - 8 - length:
        raise BadInput(f"'{path}' describes {end:,} bytes of tensors and holds {len(raw) - 8 - length:,}: damaged.")


def _span(path: Path, name: str, entry: object) -> tuple[int, int, str]:
    """The first and last byte of one tensor, if its type and shape need exactly these."""
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise BadInput(f"'{path}' names a tensor {name[:40]!r}…: too long, or not printable.")
    if not isinstance(entry, Mapping):
        raise BadInput(f"'{path}' does not describe '{name}' as safetensors do.")
    values = cast("Mapping[str, Any]", entry)
    dtype, shape, offsets = values.get("dtype"), _counts(values.get("shape")), _counts(values.get("data_offsets"))
    if dtype not in _ITEMSIZE:
        raise BadInput(f"'{path}': '{name}' has the type {str(dtype)[:20]!r}; read are {', '.join(_ITEMSIZE)}.")
    if shape is None or offsets is None or len(offsets) != 2:
        raise BadInput(f"'{path}' gives '{name}' no usable shape or place.")
    start, stop = offsets
    if stop - start != math.prod(shape) * _ITEMSIZE[dtype]:
        raise BadInput(f"'{path}': '{name}' {tuple(shape)} of {dtype} does not fill bytes {start} to {stop}.")
    return start, stop, name


def _counts(value: object) -> list[int] | None:
    """A list of whole numbers that are not negative, or nothing."""
    if not isinstance(value, list):
        return None
    found = cast("list[object]", value)
    return cast("list[int]", found) if all(type(v) is int and 0 <= v < 2**48 for v in found) else None


def _check_pickle(path: Path, limit: int) -> None:
    """Look at a torch.save file without running it: an archive of plain sizes, whose pickle names tensors only."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            total = sum(entry.file_size for entry in entries)
            if total > limit or len(entries) > 100_000:
                raise BadInput(f"'{path}' unpacks to {total:,} bytes in {len(entries)} entries; {limit:,} are read.")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise BadInput(f"'{path}' is a compressed archive, which torch.save never writes. It was not read.")
            if len({entry.filename for entry in entries}) != len(entries):
                raise BadInput(f"'{path}' holds two entries of one name. It was not read.")
            pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
            if len(pickles) != 1:
                raise BadInput(f"'{path}' is no file of torch.save: it holds {len(pickles)} pickles instead of one.")
            _check_globals(path, archive.read(pickles[0]))
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        raise BadInput(
            f"'{path}' is not a readable weights file ({error}). Accepted: safetensors, or torch.save of a state dict "
            "(not in its legacy format)."
        ) from error


def _check_globals(path: Path, pickled: bytes) -> None:
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                if (module, name) not in _GLOBALS:
                    raise BadInput(
                        f"'{path}' holds more than plain weights: it names {module[:60]}.{name[:60]}, and reading it "
                        "could run code, so it was not read. Save its state_dict as safetensors."
                    )
            elif opcode.name in ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"):
                raise BadInput(
                    f"'{path}' holds a pickle that builds objects ({opcode.name}), which a state dict does not. "
                    "It was not read. Save the state_dict as safetensors."
                )
    except (ValueError, UnicodeDecodeError, IndexError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"'{path}' holds a damaged pickle: {error}") from error


def _check_loaded(path: Path, found: Mapping[str, Tensor], limit: int) -> None:
    """A tiny file can describe a huge tensor (stride 0), or one with no values at all."""
    odd = [n for n, v in found.items() if v.layout != torch.strided or v.device.type != "cpu" or v.is_quantized]
    if odd:
        raise BadInput(f"'{path}' holds tensors that are not plain: {as_names(odd)}.")
    total = _total(found.values())
    if total > limit:
        raise BadInput(f"'{path}' describes tensors of {total:,} bytes; at most {limit:,} are read.")


def _total(values: Iterable[Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in values)
