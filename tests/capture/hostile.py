"""Capture files as an adversary or a broken disk would leave them, generated from a good one: name → path(s).

Each maker gets an empty folder, and leaves there either a capture ("capture" folder) or a pair of state files.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from clients import photographs, small_model, trained

from leakscope.capture import Update, save_update
from leakscope.capture.update import MANIFEST, _digest

Maker = Callable[[Path], None]
GOOD = trained(small_model(), photographs())
SENT, RECEIVED = "sent.safetensors", "received.safetensors"


def cases() -> Iterator[tuple[str, Maker]]:
    yield from _damaged()
    yield from _contents()
    yield from _manifests()
    yield from _headers()
    yield from _places()
    yield from _pickles()


def _capture(folder: Path, update: Update = GOOD) -> Path:
    return save_update(update, folder / "capture")


def _captured(update: Update) -> Maker:
    def make(folder: Path) -> None:
        _capture(folder, update)

    return make


def _edit(name: str, change: Callable[[bytes], bytes]) -> Maker:
    def make(folder: Path) -> None:
        path = _capture(folder) / name
        path.write_bytes(change(path.read_bytes()))

    return make


def _damaged() -> Iterator[tuple[str, Maker]]:
    draw = random.Random(0)
    for name in (MANIFEST, SENT, RECEIVED):
        for share in (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
            yield f"truncated-{name}-{share}", _edit(name, lambda raw, s=share: raw[: int(s * len(raw))])
        for index in range(12):
            place, bit = draw.random(), draw.randrange(8)

            def flip(raw: bytes, place: float = place, bit: int = bit) -> bytes:
                spoilt = bytearray(raw)
                spoilt[int(place * len(raw))] ^= 1 << bit
                return bytes(spoilt)

            yield f"flipped-{name}-{index}", _edit(name, flip)
        yield f"longer-{name}", _edit(name, lambda raw: raw + b"\0" * 8)
        yield f"noise-{name}", _edit(name, lambda raw: random.Random(1).randbytes(len(raw)))
        yield f"absent-{name}", lambda folder, n=name: (_capture(folder) / n).unlink()


def _changed(part: str, name: str, value: torch.Tensor) -> Maker:
    tensors = {**getattr(GOOD, part), name: value}
    return _captured(replace(GOOD, **{part: tensors}))


def _contents() -> Iterator[tuple[str, Maker]]:
    """Captures that are sound as files and wrong as updates."""
    for part in ("sent", "received"):
        for name, value in getattr(GOOD, part).items():
            yield f"shape-{part}-{name}", _changed(part, name, torch.cat([value.flatten(), value.flatten()[:1]]))
            if value.is_floating_point():
                for label, bad in (("nan", float("nan")), ("inf", float("inf")), ("minus-inf", -float("inf"))):
                    spoilt = value.clone()
                    spoilt.view(-1)[0] = bad
                    yield f"{label}-{part}-{name}", _changed(part, name, spoilt)
                yield f"integers-{part}-{name}", _changed(part, name, value.long())
        for label in ("../../escape", "/etc/passwd", "0.weight.extra", "module.0.weight", "__class__", "ℵ"):
            yield f"unexpected-{part}-{label.replace('/', '_')}", _changed(part, label, torch.ones(3))
    for name in GOOD.received:
        if not name.endswith("num_batches_tracked"):
            less = {n: v for n, v in GOOD.received.items() if n != name}
            yield f"lacking-{name}", _captured(replace(GOOD, received=less))
    start = GOOD.received
    delta = {n: v - start[n] for n, v in GOOD.sent.items()}
    turned = {n: -v for n, v in delta.items()}
    wrong = {
        "weights-called-delta": replace(GOOD, kind="delta"),
        "weights-called-gradient": replace(GOOD, kind="gradient"),
        "delta-called-weights": replace(GOOD, sent=delta),
        "delta-called-gradient": replace(GOOD, kind="gradient", sent=delta),
        "gradient-called-weights": replace(GOOD, sent=turned),
        "gradient-called-delta": replace(GOOD, kind="delta", sent=turned),
        "before-and-after-swapped": replace(GOOD, sent=GOOD.received, received=GOOD.sent),
        "nothing-moved": replace(GOOD, sent=GOOD.received),
        "another-client": replace(GOOD, sent=trained(small_model(), photographs(2)).sent),
        "another-model": replace(GOOD, received=small_model(seed=1).state_dict()),
        "tensors-exchanged": replace(
            GOOD, sent={**GOOD.sent, "1.bias": GOOD.sent["4.bias"], "4.bias": GOOD.sent["1.bias"]}
        ),
        "zeros": replace(GOOD, sent={n: torch.zeros_like(v) for n, v in GOOD.sent.items()}),
        "enormous": replace(GOOD, sent={n: v * 1e30 if v.is_floating_point() else v for n, v in GOOD.sent.items()}),
        "buffers-only": replace(GOOD, sent={n: v for n, v in GOOD.sent.items() if "running" in n}),
    }
    for label, update in wrong.items():
        yield f"mislabelled-{label}", _captured(update)


def _manifest(change: Callable[[dict[str, Any]], object], *, signed: bool = True) -> Maker:
    """A manifest somebody wrote by hand, with a digest that fits."""

    def make(folder: Path) -> None:
        path = _capture(folder) / MANIFEST
        manifest = json.loads(path.read_text())
        change(manifest)
        if signed:
            manifest["sha256"] = _digest(manifest)
        path.write_text(json.dumps(manifest))

    return make


def _manifests() -> Iterator[tuple[str, Maker]]:
    for key in ("format", "version", "kind", "round", "client", "source", "metadata", "files"):
        yield f"manifest-without-{key}", _manifest(lambda m, k=key: m.pop(k))
        for label, value in (("number", 1e300), ("list", [1]), ("truth", True)):
            yield f"manifest-{key}-{label}", _manifest(lambda m, k=key, v=value: m.update({k: v}))
    digest = {"bytes": 1, "sha256": "0" * 64}
    for label, change in {
        "path": lambda m: m.update(path="/etc/passwd"),
        "escape": lambda m: m["files"].update({"../../sent": digest}),
        "absolute": lambda m: m["files"].update({"/etc/passwd": digest}),
        "file-name": lambda m: m["files"]["sent"].update(name="../other.safetensors"),
        "no-sent": lambda m: m["files"].pop("sent"),
        "future": lambda m: m.update(version=99),
        "negative": lambda m: m.update(round=-1),
        "control": lambda m: m.update(client="\x1b[2Jall safe"),
        "newline": lambda m: m.update(source="a\nOK: safe"),
        "long": lambda m: m.update(client="x" * 10_000),
        "nested": lambda m: m.update(metadata={"lr": {"a": 1}}),
        "huge-fact": lambda m: m.update(metadata={"lr": 1e200}),
        "verdict": lambda m: m.update(ok=True, problems=[]),
    }.items():
        yield f"manifest-{label}", _manifest(change)
    yield "manifest-unsigned", _manifest(lambda m: m.update(metadata={"lr": 3.0}), signed=False)
    raw: dict[str, bytes] = {
        "deep": b"[" * 100_000,
        "array": b"[]",
        "nan": b'{"format": NaN}',
        "twice": b'{"format": "leakscope-update", "format": "leakscope-update"}',
        "utf16": '{"format": "leakscope-update"}'.encode("utf-16"),
        "big": b" " * (2**20 + 1),
        "pickle": pickle.dumps({"format": "leakscope-update"}),
    }
    for label, text in raw.items():
        yield f"manifest-raw-{label}", _edit(MANIFEST, lambda _, t=text: t)


def _header(change: Callable[[dict[str, Any]], object], *, text: Callable[[str], str] = str) -> Maker:
    """Safetensors with a header somebody wrote by hand, and a manifest that vouches for the file."""

    def make(folder: Path) -> None:
        path = _capture(folder) / SENT
        raw = path.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        change(header)
        written = text(json.dumps(header)).encode()
        _vouched(path, struct.pack("<Q", len(written)) + written + raw[8 + length :])

    return make


def _vouched(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    manifest = json.loads((path.parent / MANIFEST).read_text())
    manifest["files"]["sent"] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest["sha256"] = _digest(manifest)
    (path.parent / MANIFEST).write_text(json.dumps(manifest))


def _headers() -> Iterator[tuple[str, Maker]]:
    for label, change in {
        "huge-shape": lambda h: h["0.weight"].update(shape=[2**40]),
        "overflow": lambda h: h["0.weight"].update(shape=[2**33, 2**33]),
        "negative-shape": lambda h: h["0.weight"].update(shape=[-1, 162]),
        "fraction": lambda h: h["0.weight"].update(shape=[0.5]),
        "negative-offset": lambda h: h["0.weight"].update(data_offsets=[-4, 10]),
        "far-offset": lambda h: h["0.weight"].update(data_offsets=[2**40, 2**40 + 648]),
        "overlap": lambda h: h["1.bias"].update(data_offsets=h["4.bias"]["data_offsets"]),
        "gap": lambda h: h.pop("1.bias"),
        "no-dtype": lambda h: h["0.weight"].pop("dtype"),
        "complex": lambda h: h["0.weight"].update(dtype="C64"),
        "float8": lambda h: h["0.weight"].update(dtype="F8_E4M3"),
        "wrong-dtype": lambda h: h["0.weight"].update(dtype="F64"),
        "unknown-dtype": lambda h: h["0.weight"].update(dtype="__import__('os')"),
        "text-entry": lambda h: h.update({"0.weight": "F32"}),
        "control-name": lambda h: h.update({"\x1b[2J": h.pop("0.weight")}),
        "long-name": lambda h: h.update({"x" * 10_000: h.pop("0.weight")}),
        "integers": lambda h: h["0.weight"].update(dtype="I32"),
    }.items():
        yield f"header-{label}", _header(change)
    twice = '{"0.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, '
    yield "header-duplicate-name", _header(lambda h: None, text=lambda t: twice + t[1:])
    yield "header-array", _header(lambda h: None, text=lambda t: "[]")
    for label, raw in {
        "length-beyond": struct.pack("<Q", 2**62) + b"{}",
        "length-100-GB": struct.pack("<Q", 100 * 2**30) + b"{}",
        "empty": b"",
        "pickle": pickle.dumps({"0.weight": [1.0]}),
    }.items():
        yield f"file-{label}", lambda folder, r=raw: _vouched(_capture(folder) / SENT, r)


def _places() -> Iterator[tuple[str, Maker]]:
    """Files that are elsewhere, or no files."""

    def linked(folder: Path, name: str) -> None:
        path = _capture(folder) / name
        path.rename(folder / "outside")
        path.symlink_to(folder / "outside")

    def device(folder: Path) -> None:
        path = _capture(folder) / SENT
        path.unlink()
        path.symlink_to("/dev/zero")

    def piped(folder: Path) -> None:
        path = _capture(folder) / SENT
        path.unlink()
        os.mkfifo(path)

    def folded(folder: Path) -> None:
        path = _capture(folder) / SENT
        path.unlink()
        path.mkdir()

    def sparse(folder: Path) -> None:
        os.truncate(_capture(folder) / SENT, 5 * 2**30)

    for name in (MANIFEST, SENT, RECEIVED):
        yield f"link-{name}", lambda folder, n=name: linked(folder, n)
    yield "link-to-device", device
    yield "pipe", piped
    yield "folder", folded
    yield "oversized-sparse", sparse
    yield "no-folder", lambda folder: None
    yield "empty-folder", lambda folder: (folder / "capture").mkdir()


class _Runs:
    """Unpickles into a call."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


def _pickles() -> Iterator[tuple[str, Maker]]:
    """State files that try to run code or to fill the memory. One that runs makes a file named SENTINEL."""

    def payloads(mark: Path) -> dict[str, Any]:
        return {
            "os-system": _Runs(os.system, f"touch {mark}"),
            "exec": _Runs(builtins.exec, f"open({str(mark)!r}, 'w').close()"),
            "eval": _Runs(builtins.eval, f"open({str(mark)!r}, 'w').close()"),
            "subprocess": _Runs(subprocess.call, ["touch", str(mark)]),
            "copy": _Runs(shutil.copy, "/etc/hostname", str(mark)),
            "import": _Runs(builtins.__import__, "antigravity"),
            "torch-load": _Runs(torch.load, str(mark)),
            "getattr": _Runs(builtins.getattr, dict, "items"),
            "bytearray": _Runs(bytearray, 2**40),
            "storage": _Runs(torch.UntypedStorage, 2**40),
            "tensor": _Runs(torch.ones, 2**40),
        }

    for label in payloads(Path("x")):
        for where in ("value", "beside", "key"):

            def zipped(folder: Path, label: str = label, where: str = where) -> None:
                evil = payloads(folder / "SENTINEL")[label]
                state: dict[Any, Any] = dict(GOOD.sent)
                state |= {"0.weight": evil} if where == "value" else {"extra": evil} if where == "beside" else {}
                content: Any = state if where != "key" else [evil, state]
                torch.save(dict(GOOD.received), folder / "before.pt")
                torch.save(content, folder / "after.pt")

            yield f"pickle-{label}-{where}", zipped
        for protocol in (0, 2, 4):

            def bare(folder: Path, label: str = label, protocol: int = protocol) -> None:
                torch.save(dict(GOOD.received), folder / "before.pt")
                raw = pickle.dumps(payloads(folder / "SENTINEL")[label], protocol=protocol)
                (folder / "after.pt").write_bytes(raw)

            yield f"pickle-{label}-bare-{protocol}", bare

    def legacy(folder: Path) -> None:
        torch.save(dict(GOOD.received), folder / "before.pt")
        torch.save({"a": _Runs(os.system, "true")}, folder / "after.pt", _use_new_zipfile_serialization=False)

    def inside(raw: Callable[[Path], bytes], *, compressed: bool = False, twice: bool = False) -> Maker:
        """An archive as torch.save makes it, with another pickle inside."""

        def make(folder: Path) -> None:
            torch.save(dict(GOOD.received), folder / "before.pt")
            buffer = io.BytesIO()
            torch.save(dict(GOOD.sent), buffer)
            method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
            with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(folder / "after.pt", "w", method) as new:
                for entry in old.infolist():
                    is_pickle = entry.filename.endswith("data.pkl")
                    new.writestr(entry.filename, raw(folder) if is_pickle else old.read(entry))
                if twice:
                    new.writestr("more/data.pkl", raw(folder))

        return make

    def stacked(folder: Path) -> bytes:
        return pickle.dumps(_Runs(os.system, f"touch {folder / 'SENTINEL'}"), protocol=4)

    yield "pickle-legacy", legacy
    yield "archive-stack-global", inside(stacked)
    yield "archive-inst", inside(lambda f: f"(S'touch {f / 'SENTINEL'}'\nios\nsystem\n.".encode())
    yield "archive-two-pickles", inside(stacked, twice=True)
    yield "archive-cut-pickle", inside(lambda f: b"\x80\x02}q")
    yield "archive-compressed", inside(lambda f: b"\x80\x02}.", compressed=True)
    yield "archive-empty", inside(lambda f: b"\x80\x02}.")

    def bomb(folder: Path) -> None:
        torch.save(dict(GOOD.received), folder / "before.pt")
        with zipfile.ZipFile(folder / "after.pt", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/data.pkl", b"\0" * 2**26)

    def strided(folder: Path) -> None:
        torch.save(dict(GOOD.received), folder / "before.pt")
        torch.save({**GOOD.sent, "0.weight": torch.zeros(1).expand(2**40)}, folder / "after.pt")

    def sparse_layout(folder: Path) -> None:
        torch.save(dict(GOOD.received), folder / "before.pt")
        torch.save({**GOOD.sent, "0.weight": torch.eye(6).to_sparse()}, folder / "after.pt")

    def placeless(folder: Path) -> None:
        torch.save(dict(GOOD.received), folder / "before.pt")
        torch.save({**GOOD.sent, "0.weight": torch.empty(6, 3, 3, 3, device="meta")}, folder / "after.pt")

    yield "archive-bomb", bomb
    yield "tensor-of-4-TB", strided
    yield "tensor-sparse", sparse_layout
    yield "tensor-meta", placeless
    for suffix in ("pt", "safetensors"):
        for label, raw in (
            ("empty", b""),
            ("noise", random.Random(2).randbytes(4096)),
            ("text", b"weights: all fine\n"),
        ):

            def plain(folder: Path, suffix: str = suffix, raw: bytes = raw) -> None:
                torch.save(dict(GOOD.received), folder / "before.pt")
                (folder / f"after.{suffix}").write_bytes(raw)

            yield f"state-{suffix}-{label}", plain
