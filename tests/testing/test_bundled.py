"""The bundled photographs: there, licensed, small, and the same everywhere."""

from __future__ import annotations

import ast
import hashlib
from importlib import resources

import pytest
import torch
from PIL import Image

from leakscope.errors import BadInput, UnknownName
from leakscope.testing.bundled import bundled_batch, bundled_images, bundled_info, bundled_names

FOLDER = resources.files("leakscope.testing") / "images"
FREE = {"Public domain", "CC0-1.0", "CC-BY-2.0", "LicenseRef-MNI"}


def test_a_dozen_distinct_pictures_of_256_px_under_1_6_mb() -> None:
    names = bundled_names()
    assert len(names) == len(set(names)) == 12
    assert {"astronaut", "cat", "retina", "brain"} <= set(names)
    pictures = sorted(path.name for path in FOLDER.iterdir() if path.name.endswith(".png"))
    assert pictures == sorted(info.file for info in bundled_info())
    assert sum(len(path.read_bytes()) for path in FOLDER.iterdir() if path.is_file()) <= 1_600_000
    for info in bundled_info():
        with (FOLDER / info.file).open("rb") as file, Image.open(file) as picture:
            assert picture.size == (256, 256)
            assert picture.mode == "RGB"
    images = bundled_images(size=32).flatten(1)
    assert torch.cdist(images, images).fill_diagonal_(9).min() > 3


def test_every_picture_has_its_papers() -> None:
    for position, info in enumerate(bundled_info()):
        assert info.title
        assert info.author
        assert info.source
        assert info.licence in FREE
        assert info.label == position % 10
        left, top, right, bottom = info.crop
        assert right - left == bottom - top > 0


def test_the_first_example_of_the_readme() -> None:
    batch = bundled_batch(["astronaut", "cat"], size=32)
    assert batch.images.shape == (2, 3, 32, 32)
    assert batch.images.dtype == torch.float32
    assert batch.labels.tolist() == [0, 1]
    assert batch.labels.dtype == torch.long
    assert batch.names == ("astronaut", "cat")


def test_pixels_are_those_of_the_file() -> None:
    images = bundled_images(["cat"])
    with (FOLDER / "cat.png").open("rb") as file, Image.open(file) as picture:
        assert (images[0] * 255).round().byte().permute(1, 2, 0).flatten().tolist() == list(picture.tobytes())
    assert 0 <= images.min() < images.max() <= 1


def test_pixels_do_not_drift() -> None:
    digest = hashlib.sha256((bundled_images() * 255).round().byte().numpy().tobytes()).hexdigest()
    assert digest == "0e99f754a2ed547fef9b6070c3cf1d03de3d85348ea146e999f78b92f95c2835"


def test_resizing_averages_and_does_not_pick_pixels() -> None:
    """A filter that aliases would keep the contrast of the bricks' joints; an averaging one lowers the variance."""
    full, small = bundled_images(["handwriting", "brick"]), bundled_images(["handwriting", "brick"], 16)
    means = torch.nn.functional.avg_pool2d(full, 16)
    assert (small - means).abs().mean() < 0.02
    assert (small - full[..., 8::16, 8::16]).abs().mean() > 0.02


@pytest.mark.parametrize("size", [1, 28, 224, 256, 300])
def test_sizes_and_channels(size: int) -> None:
    assert bundled_images(["cat", "brick"], size).shape == (2, 3, size, size)
    grey = bundled_images(["cat"], size, channels=1)
    assert grey.shape == (1, 1, size, size)
    assert bundled_batch(["cat"], size=size, channels=1).images.shape == (1, 1, size, size)
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    luma = (bundled_images(["cat"], size)[0] * weights).sum(0)
    assert (grey[0, 0] - luma).abs().max() < 3 / 255


def test_labels() -> None:
    assert bundled_batch(size=8).labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert bundled_batch(["brick", "coffee"], size=8, num_classes=4).labels.tolist() == [1, 2]
    assert bundled_batch(["brick", "cat"], size=8, num_classes=1000).labels.tolist() == [9, 1]
    assert bundled_batch(["cat", "cat"], size=8, labels=[7, 7]).labels.tolist() == [7, 7]


def test_a_caller_cannot_spoil_the_next_one() -> None:
    first = bundled_images(["cat"], 16)
    first.zero_()
    assert bundled_images(["cat"], 16).max() > 0.5


def test_misuse_is_explained() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'astronaut'"):
        bundled_images(["astronut"])
    with pytest.raises(BadInput, match=r"\['cat'\]"):
        bundled_images("cat")
    with pytest.raises(BadInput, match="at least one name"):
        bundled_batch([], size=8)
    for size in (0, -3, 5000, 2.5, True):
        with pytest.raises(BadInput, match="size"):
            bundled_images(["cat"], size)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="channels=2"):
        bundled_images(["cat"], 8, channels=2)
    with pytest.raises(BadInput, match="one label per image"):
        bundled_batch(["cat"], size=8, labels=[1, 2])
    with pytest.raises(BadInput, match=r"0…9 for 10 classes; got 10"):
        bundled_batch(["cat"], size=8, labels=[10])
    with pytest.raises(BadInput, match="num_classes"):
        bundled_batch(["cat"], size=8, num_classes=0)


def test_neither_pictures_nor_metrics_import_torchvision() -> None:
    """Nor anything that does: scoring must work, and start fast, where torchvision is broken."""
    package = resources.files("leakscope")
    files = [package / "testing" / "bundled.py", *(package / "metrics").iterdir()]
    sources = [ast.parse(file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".py")]
    assert len(sources) > 8
    for node in (node for source in sources for node in ast.walk(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & {"torchvision", "torchmetrics", "timm", "lpips"}
