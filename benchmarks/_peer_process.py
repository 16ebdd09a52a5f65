"""The processes ``peers.py`` talks to: one per tool, and the environment the peer lives in."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["PEER_VENV", "Worker", "WorkerDied", "peer_python", "peer_requirements"]

PEER_VENV = Path(__file__).resolve().parent.parent / ".venv-peers"
SAME_AS_OURS = ("torch", "torchvision", "numpy", "scipy", "pillow", "safetensors")
PEER_PINS = ("breaching==0.1.2", "hydra-core==1.3.8", "omegaconf==2.3.1", "lpips==0.1.4")


class WorkerDied(RuntimeError):
    """A worker process ended before it answered; the message carries the end of its log."""


class Worker:
    """A tool in its own process, with its threads pinned; asked one job at a time."""

    def __init__(self, tool: str, python: Path, script: Path, *, threads: int) -> None:
        self.tool = tool
        pinned = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **pinned},
        )
        self.about: dict[str, Any] = self._read()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Send a job, wait for its answer: the figures, or ``{"error": …}``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise WorkerDied(f"The {self.tool} worker stopped. The end of its log:\n{self._log.read()[-3000:]}")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # interrupted in the middle of an attack
            self._process.kill()
            self._process.wait()
        self._log.close()


def peer_requirements() -> list[str]:
    """What the peer's environment holds: torch and the rest exactly as in ours, so that only the tools differ."""
    ours = [f"{name}=={metadata.version(name).partition('+')[0]}" for name in SAME_AS_OURS]
    return [*ours, *PEER_PINS]


def peer_python(say: Any = print) -> Path:
    """The interpreter of the peer's environment, which is made (or brought up to date) first if need be."""
    python = PEER_VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = "\n".join(peer_requirements()) + "\n"
    stamp = PEER_VENV / "requirements.installed"
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    say(f"Installing breaching into {PEER_VENV.name}/ (once; a minute or two, needs the package registry) …")
    venv.create(PEER_VENV, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *peer_requirements()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise WorkerDied(f"breaching could not be installed. pip said:\n{done.stderr[-3000:]}")
    stamp.write_text(wanted, encoding="utf-8")
    return python
