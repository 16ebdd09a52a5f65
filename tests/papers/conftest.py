"""Slow reproductions take real images from a folder or zip given with --data; without it, the bundled ones."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import leakscope as ls


def pytest_addoption(parser):
    parser.addoption("--data", type=Path, help="CIFAR-10 in ImageFolder layout, a folder or a zip")


def _files(data: Path) -> dict[str, bytes]:
    if data.is_dir():
        return {str(p.relative_to(data)): p.read_bytes() for p in data.rglob("*.jpg") if "test" in p.parts}
    with zipfile.ZipFile(data) as archive:
        return {n: archive.read(n) for n in archive.namelist() if "/test/" in n and n.endswith(".jpg")}


@pytest.fixture(scope="session")
def cifar(request) -> ls.Batch:
    """Ten CIFAR-10 test images, the first of each class; or ten bundled photographs at 32 px."""
    data = request.config.getoption("--data")
    if data is None:
        return ls.bundled_batch(list(ls.bundled_names()[:10]), size=32)
    files = _files(data)
    classes = sorted({Path(name).parent.name for name in files})
    first = [min(n for n in files if Path(n).parent.name == c) for c in classes]
    images = [np.asarray(Image.open(io.BytesIO(files[n])).convert("RGB")) / 255 for n in first]
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float()
    return ls.Batch(images=pixels, labels=torch.arange(len(classes)))
