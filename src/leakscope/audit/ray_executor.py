"""Cells on a Ray cluster: one that runs already, by its address, or one started on this machine.

A cell travels as plain data with the files it names, runs in a folder of its own wherever there is a free core, and its
record comes back as bytes, which only this process writes: no disk is shared. A node that is lost costs a retry.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast, final

from leakscope.audit.campaign import UPDATE
from leakscope.audit.cell import CELLS, Cell
from leakscope.audit.executors import Done, Event
from leakscope.audit.images import image_files
from leakscope.audit.record import RECORD
from leakscope.audit.store import ensure_writable, replacing
from leakscope.errors import BadInput, MissingExtra

__all__ = ["RayExecutor"]

log = logging.getLogger(__name__)

RETRIES: Final = 3
"""How often a cell is run again whose worker or node was lost."""


@final
class RayExecutor:
    """One core for each cell; ``jobs`` bounds how many are under way, by default as many as the cluster has cores."""

    def __init__(self, out: Path, base: Path, *, address: str | None = None, jobs: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("Running on a Ray cluster", "ray") from error
        self._ray: Any = ray
        self._out, self._base = out, base
        self._owner = not ray.is_initialized()
        if self._owner:
            try:
                own = None if address else jobs
                ray.init(address=address, num_cpus=own, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
                where = f"the Ray cluster at '{address}'" if address else "a Ray cluster on this machine"
                raise BadInput(f"Cannot reach {where}: {error}") from error
        cores = int(ray.cluster_resources().get("CPU", 1))
        self.slots = max(1, min(jobs, cores) if jobs and address else cores)
        self._task: Any = ray.remote(num_cpus=1, max_retries=RETRIES)(_run_there)
        self._files: dict[str, Any] = {}
        self._running: dict[Any, Cell] = {}

    def submit(self, cell: Cell) -> None:
        files = {name: self._stored(name) for name in _files_of(cell, self._base)}
        self._running[self._task.remote(cell, list(files), *files.values())] = cell

    def _stored(self, name: str) -> Any:
        """The content of a file in the cluster's own store, put there once."""
        if name not in self._files:
            self._files[name] = self._ray.put((self._base / name).read_bytes())
        return self._files[name]

    def events(self, timeout: float) -> list[Event]:
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        return [self._collect(reference) for reference in done]

    def _collect(self, reference: Any) -> Event:
        cell = self._running.pop(reference)
        folder = self._out / CELLS / cell.key
        try:
            _lay(folder, cast("dict[str, bytes]", self._ray.get(reference)))
        except self._ray.exceptions.RayError as error:
            from leakscope.audit.cell_run import blank_record
            from leakscope.audit.store import write_failure

            ensure_writable(folder)
            write_failure(folder, blank_record(cell, "failed", ""), error)
        return Done(key=cell.key)

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._owner:
            self._ray.shutdown()


def _files_of(cell: Cell, base: Path) -> list[str]:
    """The files a cell names, relative to ``base``. Those it names by an absolute path must be on every node."""
    names = [str(cell.model["weights"])] if cell.model.get("weights") else []
    file, _, factory = str(cell.model["name"]).rpartition(":")
    if factory and file.endswith(".py"):
        names.append(file)
    for table in (cell.images, cell.public):
        relative = [source for source in table.get("from", []) if not Path(source).is_absolute()]
        names += [os.path.relpath(path, base) for path in image_files(relative, base)]
        names += [table["labels_file"]] if table.get("labels_file") else []
    if UPDATE in cell.client:
        folder = base / cell.client[UPDATE]
        names += [os.path.relpath(path, base) for path in folder.glob("*") if path.is_file()]
    return [name for name in names if not Path(name).is_absolute()]


def _lay(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write what came back, the record last: a folder with a record is complete."""
    ensure_writable(folder)
    for name in sorted(content, key=lambda name: name == RECORD):
        with replacing(folder / name) as part:
            part.write_bytes(content[name])


def _run_there(cell: Cell, names: list[str], *files: bytes) -> dict[str, bytes]:
    """On the worker: lay out the files, run the cell on one thread, and send back what it wrote."""
    import torch

    from leakscope.audit.cell_run import run_cell

    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="leakscope-") as place:
        # Names may lead out of the base (../photos/a.png), so it lies deep enough for them to stay in this place.
        deepest = max((Path(name).parts.count("..") for name in names), default=0)
        base, folder = Path(place, *["in"] * deepest, "base"), Path(place) / "cell"
        base.mkdir(parents=True)
        for name, content in zip(names, files, strict=True):
            (base / name).parent.mkdir(parents=True, exist_ok=True)
            (base / name).write_bytes(content)
        run_cell(cell, folder, base=base)
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}
