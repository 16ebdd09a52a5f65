"""Writing a record and its pictures: every file in one move, the record last.

A folder with a ``record.json`` is therefore complete. Private pixels go into this folder and nowhere else.
"""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from leakscope.attacks.settings import settings
from leakscope.audit.record import FAILED, RECORD, Picture, Record, Target, read_record
from leakscope.client import Split
from leakscope.errors import BadInput
from leakscope.metrics import Scores
from leakscope.models import VisionModel
from leakscope.types import Attack, Batch, ClientProtocol, Defence, Reconstruction, ThreatModel

__all__ = [
    "TENSORS",
    "begin_record",
    "ensure_writable",
    "forget",
    "replacing",
    "write_failure",
    "write_plain",
    "write_record",
]

TENSORS: Final = "reconstruction.safetensors"


def begin_record(
    *,
    run: str,
    seed: int,
    stream: str,
    model: VisionModel,
    client: ClientProtocol,
    threat: ThreatModel,
    attack_name: str,
    attack: Attack | None,
    defences: Sequence[Defence] = (),
    cell: str = "",
    role: str = "attack",
) -> Record:
    """What is known before an attack starts; ``client`` is what the client does, whatever the server believes."""
    return Record(
        run=run,
        status=FAILED,
        message="The attack has not ended.",
        target=Target(
            name=model.name,
            fingerprint=model.fingerprint(),
            parameters=sum(p.numel() for p in model.parameters()),
            shape=model.input.shape,
            num_classes=model.input.num_classes,
        ),
        client=_mapping(client),
        threat=threat.name,
        knows=tuple(sorted(threat.knows)),
        attack=attack_name,
        settings={} if attack is None else _mapping(attack),
        defences=tuple(_mapping(defence) for defence in defences),
        cell=cell,
        role=role,
        depth=_depth(model, client),
        seed=seed,
        stream=stream,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "leakscope": version("leakscope"),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "threads": str(torch.get_num_threads()),
        },
    )


def write_record(
    folder: Path, begun: Record, *, batch: Batch, reconstruction: Reconstruction, scores: Scores
) -> Record:
    """Write pictures, tensors and the finished record into ``folder``; the record is returned.

    ``original-0.png`` and ``reconstruction-0.png``, … are matched pairs, at the model's own size: pixels are the truth.
    ``reconstruction.safetensors`` holds ``images`` (B, C, H, W) and ``labels``, likewise in the originals' order.
    """
    images = reconstruction.images.detach().cpu()[scores.assignment]
    labels = reconstruction.labels.detach().cpu()
    labels = (labels.argmax(1) if labels.ndim == 2 else labels)[scores.assignment]
    names = batch.names or tuple(str(index) for index in range(len(batch)))
    pictures = tuple(
        Picture(
            name=name,
            label=_label(batch.labels[index]),
            recovered_label=_label(labels[index]) if scores.labels_correct[index] else _other(labels[index]),
            original=f"original-{index}.png",
            reconstruction=f"reconstruction-{index}.png",
        )
        for index, name in enumerate(names)
    )
    evidence = dict(reconstruction.evidence)
    energies, restart = evidence.pop("energies", ()), evidence.pop("restart", None)
    record = replace(
        begun,
        status=reconstruction.outcome.status.value,
        message=reconstruction.outcome.message,
        energy=float(reconstruction.energy),
        steps=reconstruction.steps,
        seconds=round(reconstruction.seconds, 3),
        restart=restart if isinstance(restart, int) else None,
        energies=tuple(energies) if isinstance(energies, list | tuple) else (),
        evidence={key: settings(value) for key, value in evidence.items()},
        scores=scores.to_json(),
        pictures=pictures,
        trace=tuple(tuple(row) for row in reconstruction.trace),
    )
    text = record.to_text()
    forget(folder)
    with _output(folder):
        for index, picture in enumerate(pictures):
            _save_png(folder / picture.original, batch.images[index])
            _save_png(folder / picture.reconstruction, images[index])
        with replacing(folder / TENSORS) as part:
            save_file({"images": images.contiguous(), "labels": labels.contiguous()}, part)
        with replacing(folder / RECORD) as part:
            part.write_text(text, encoding="utf-8")
    return record


def write_failure(folder: Path, begun: Record, error: Exception) -> Record:
    """Record that the attack ended in an exception, with its traceback, which holds no values of variables."""
    trace = "".join(traceback.format_exception(error))
    return write_plain(folder, replace(begun, message=f"Failed: {type(error).__name__}: {error}", error=trace))


def write_plain(folder: Path, record: Record) -> Record:
    """A record without pictures: a failure, a refusal, an analysis."""
    forget(folder)
    with _output(folder), replacing(folder / RECORD) as part:
        part.write_text(record.to_text(), encoding="utf-8")
    return record


def forget(folder: Path) -> None:
    """Remove a record and the files it names, and nothing else that may lie in the folder."""
    try:
        old = read_record(folder)
    except BadInput:  # none, or one that cannot be read and so names no files
        return
    with _output(folder):
        (folder / RECORD).unlink()
        for picture in old.pictures:
            for name in (picture.original, picture.reconstruction):
                # A record is a file anyone may have edited: only names of our own making are followed.
                if Path(name).name == name and name.endswith(".png"):
                    (folder / name).unlink(missing_ok=True)
        (folder / TENSORS).unlink(missing_ok=True)


def ensure_writable(folder: Path) -> None:
    """Make ``folder`` and try it out, so that an hour's work does not end in an error."""
    with _output(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with replacing(folder / ".writable") as part:
            part.touch()
        (folder / ".writable").unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what killed processes of this machine left half written; parts of those that live are theirs."""
    for part in folder.glob(".*.part"):
        owner = part.name.split(".")[-2]
        if not owner.isdecimal():
            continue
        try:
            os.kill(int(owner), 0)  # signal 0 asks, and does nothing
        except (ProcessLookupError, OverflowError):
            part.unlink(missing_ok=True)
        except PermissionError:
            continue


@contextmanager
def _output(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"Cannot write to '{folder}': {error.strerror or error}. Choose another output folder."
        ) from error


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path to write to, which takes ``path``'s place in one move when the block ends well."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _save_png(path: Path, image: Tensor) -> None:
    """One image (C, H, W) in [0, 1], greyscale or colour, rounded to bytes."""
    if image.shape[0] not in (1, 3):
        raise BadInput(f"Pictures are written for 1 or 3 channels; these images have {image.shape[0]}.")
    pixels = (image.detach().cpu().nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    array = np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    with replacing(path) as part:
        picture.save(part, format="PNG")


def _label(label: Tensor) -> int | str:
    """A class as it is; boxes, (M, 5), counted."""
    if label.ndim == 0:
        return int(label)
    count = int((label[:, 0] >= 0).sum())
    return f"{count} box" if count == 1 else f"{count} boxes"


def _other(label: Tensor) -> int | str:
    """A label that is not the original's; as many boxes in other places are other boxes."""
    return int(label) if label.ndim == 0 else f"other boxes: {_label(label)}"


def _depth(model: VisionModel, client: ClientProtocol) -> int | None:
    inner = getattr(client, "client", client)  # of one that augments its images
    return len(inner.called(model)) if isinstance(inner, Split) else None


def _mapping(value: object) -> Mapping[str, object]:
    described = settings(value)
    return described if isinstance(described, dict) else {"type": str(described)}
