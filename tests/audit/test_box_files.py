"""Boxes from files: YOLO's text, COCO's JSON, our plain JSON; letterboxed; and a campaign on a detector."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from leakscope.audit.boxes import read_box_file, read_text_boxes
from leakscope.audit.images import image_files, load_images
from leakscope.errors import BadInput
from leakscope.types import InputSpec

SPEC = InputSpec(shape=(3, 64, 64), num_classes=4, boxes=True)


def picture(path, width=80, height=40):
    """White, with a red upper left quarter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((height, width, 3), 255, np.uint8)
    pixels[: height // 2, : width // 2] = (255, 0, 0)
    Image.fromarray(pixels).save(path)
    return path


def test_text_beside_the_image_is_letterboxed_with_it(tmp_path):
    image = picture(tmp_path / "one.png")
    image.with_suffix(".txt").write_text("2 0.25 0.25 0.5 0.5\n\n")
    loaded = load_images([str(tmp_path)], SPEC)
    assert any("letterboxed" in line for line in loaded.notices)
    kind, x, y, width, height = loaded.batch.labels[0, 0].tolist()
    assert (kind, x, y, width, height) == (2, 0.25, 0.375, 0.5, 0.25)
    # The box surrounds the red quarter, and the bars are grey.
    left, top, right, bottom = (round(64 * v) for v in (x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    inside = loaded.batch.images[0][:, top + 1 : bottom - 1, left + 1 : right - 1]
    assert inside[0].min() > 0.9
    assert inside[1].max() < 0.1
    assert torch.allclose(loaded.batch.images[0][:, :15], torch.tensor(114 / 255), atol=1e-4)
    assert image.with_suffix(".txt") in image_files([str(tmp_path)])  # a campaign's cells depend on it


def test_the_folders_of_yolo(tmp_path):
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "images" / "b.png")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "b.txt").write_text("1 0.5 0.5 1 1\n3 0.5 0.5 0.1 0.1\n")
    loaded = load_images([str(tmp_path / "images")], SPEC)
    assert loaded.batch.labels[..., 0].tolist() == [[-1, -1], [1, 3]]
    assert any("taken to show no object: 1 of 2" in line for line in loaded.notices)


def test_coco_categories_are_numbered_and_pixels_divided(tmp_path):
    file = tmp_path / "instances.json"
    content = {
        "images": [
            {"id": 7, "file_name": "train/one.png", "width": 80, "height": 40},
            {"id": 8, "file_name": "two.png", "width": 80, "height": 40},
        ],
        "annotations": [{"image_id": 7, "category_id": 13, "bbox": [0, 0, 40, 20]}],
        "categories": [{"id": 13}, {"id": 2}],
    }
    file.write_text(json.dumps(content))
    boxes = read_box_file(file)
    assert boxes["one.png"].tolist() == [[1, 0.25, 0.25, 0.5, 0.5]]
    assert boxes["two.png"].shape == (0, 5)
    images = [str(picture(tmp_path / name)) for name in ("one.png", "two.png")]
    assert load_images(images, SPEC, file).batch.labels[..., 0].tolist() == [[1], [-1]]


def test_bundled_photographs_take_a_plain_file(tmp_path):
    (tmp_path / "boxes.json").write_text('{"cat": [[1, 0.5, 0.5, 0.9, 0.9]], "coffee": []}')
    from pathlib import Path

    batch = load_images(["bundled:cat,coffee"], SPEC, Path("boxes.json"), base=tmp_path).batch
    assert batch.labels[..., 0].tolist() == [[1], [-1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [("0 0.5 0.5 0.1", "line 1"), ("cat 0.5 0.5 0.1 0.1", "five numbers"), ("0 nan 0.5 0.1 0.1", "five numbers")],
)
def test_hostile_text_is_refused(tmp_path, text, said):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(BadInput, match=said):
        read_text_boxes(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "mapping"),
        ('{"a": 3}', "does not hold boxes"),
        ('{"a": [[0, 1, 2]]}', "does not hold boxes"),
        ('{"images": [{"id": 1}], "annotations": []}', "does not hold boxes"),
        (
            '{"images": [{"id": 1, "file_name": "a", "width": 0, "height": 9}], '
            '"annotations": [{"image_id": 1, "category_id": 0, "bbox": [0, 0, 1, 1]}]}',
            "does not hold boxes",
        ),
    ],
)
def test_hostile_json_is_refused(tmp_path, text, said):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match=said):
        read_box_file(tmp_path / "a.json")


def test_what_is_missing_is_named(tmp_path):
    image = picture(tmp_path / "one.png")
    with pytest.raises(BadInput, match="there are none"):
        load_images([str(image)], SPEC)
    (tmp_path / "boxes.json").write_text("{}")
    with pytest.raises(BadInput, match=r"says nothing of one.png"):
        load_images([str(image)], SPEC, tmp_path / "boxes.json")
    with pytest.raises(BadInput, match="not from classes"):
        load_images([str(image)], SPEC, [1])
    with pytest.raises(BadInput, match="holds boxes"):
        load_images([str(image)], InputSpec(shape=(3, 64, 64), num_classes=4), tmp_path / "boxes.json")
