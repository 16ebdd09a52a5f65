"""Images from files: every mode and size becomes what the model takes, and nothing is done in silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import leakscope as ls
from leakscope.audit.images import load_images
from leakscope.errors import BadInput, UnknownName

COLOUR = ls.InputSpec(shape=(3, 8, 8), num_classes=10)
GREY = ls.InputSpec(shape=(1, 8, 8), num_classes=10)


def _noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def _save(path: Path, array: np.ndarray, mode: str | None = None) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(array)
    (picture if mode is None else picture.convert(mode)).save(path)
    return str(path)


def test_a_picture_that_fits_is_taken_byte_for_byte(tmp_path: Path) -> None:
    pixels = _noise(8, 8, 3)
    loaded = load_images([_save(tmp_path / "a.png", pixels)], COLOUR, [4])
    assert torch.equal(loaded.batch.images[0], torch.from_numpy(pixels).permute(2, 0, 1) / 255)
    assert loaded.batch.labels.tolist() == [4]
    assert loaded.batch.names == ("a.png",)
    assert loaded.notices == ()


def test_other_sizes_are_cropped_around_the_centre_and_resized_and_it_is_said(tmp_path: Path) -> None:
    wide = np.zeros((16, 48, 3), dtype=np.uint8)
    wide[:, 16:32] = 200  # only the central square is bright: nothing else may be seen in the result
    loaded = load_images([_save(tmp_path / "wide.png", wide)], COLOUR, [0])
    torch.testing.assert_close(loaded.batch.images, torch.full((1, 3, 8, 8), 200 / 255))
    assert loaded.notices == ("cropped around the centre and resized to 8 × 8 px: 1 of 1 images.",)


def test_models_that_are_not_square_get_their_own_shape(tmp_path: Path) -> None:
    spec = ls.InputSpec(shape=(3, 6, 10), num_classes=10)
    source = _save(tmp_path / "a.png", _noise(20, 20, 3))
    assert load_images([source, "bundled:cat"], spec).batch.images.shape == (2, 3, 6, 10)


@pytest.mark.parametrize(
    ("array", "mode", "words"),
    [
        (_noise(8, 8, 4), None, "transparency dropped"),
        (_noise(8, 8), None, "greyscale repeated to three channels"),
        (_noise(8, 8), "LA", "transparency dropped"),
        (_noise(8, 8, 3), "P", ""),
        (_noise(8, 8) // 255 * 255, "1", "greyscale repeated"),
    ],
    ids=["rgba", "grey", "grey-alpha", "palette", "bits"],
)
def test_every_mode_becomes_three_channels(tmp_path: Path, array: np.ndarray, mode: str | None, words: str) -> None:
    loaded = load_images([_save(tmp_path / "a.png", array, mode)], COLOUR, [0])
    assert loaded.batch.images.shape == (1, 3, 8, 8)
    assert any(words in line for line in loaded.notices) or not words
    if array.ndim == 3 and array.shape[2] == 4:
        expected = torch.from_numpy(array[..., :3].copy()).permute(2, 0, 1) / 255
        assert torch.equal(loaded.batch.images[0], expected)


def test_colour_becomes_grey_for_a_model_of_one_channel(tmp_path: Path) -> None:
    pixels = _noise(8, 8, 3)
    loaded = load_images([_save(tmp_path / "a.png", pixels)], GREY, [0])
    luma = np.asarray(Image.fromarray(pixels).convert("L"), dtype=np.float32) / 255
    assert torch.equal(loaded.batch.images, torch.from_numpy(luma)[None, None])
    assert loaded.notices == ("colour turned into greyscale: 1 of 1 images.",)


def test_sixteen_bits_keep_their_depth(tmp_path: Path) -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (8, 8), dtype=np.uint16)
    loaded = load_images([_save(tmp_path / "scan.png", deep)], GREY, [0])
    torch.testing.assert_close(loaded.batch.images[0, 0], torch.from_numpy(deep.astype(np.float32) / 65535))
    resized = load_images([str(tmp_path / "scan.png")], ls.InputSpec(shape=(3, 4, 4), num_classes=2), [0]).batch.images
    assert resized.shape == (1, 3, 4, 4)
    assert resized.min() >= 0
    assert resized.max() <= 1


def test_pictures_are_turned_upright(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:, 7] = 255  # the right edge is bright; orientation 6 makes it the bottom
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    image = load_images([str(tmp_path / "a.png")], COLOUR, [0]).batch.images[0]
    assert image[:, 7].min() == 1
    assert image[:, :7].max() == 0


def test_folders_are_read_in_order_of_names_without_hidden_and_other_files(tmp_path: Path) -> None:
    for name in ("b.png", "a.PNG", ".hidden.png", "c.jpg"):
        _save(tmp_path / "set" / name, _noise(8, 8, 3))
    (tmp_path / "set" / "readme.txt").write_text("no image")
    loaded = load_images([str(tmp_path / "set")], COLOUR)
    assert loaded.batch.names == ("a.PNG", "b.png", "c.jpg")
    assert loaded.batch.labels.tolist() == [0, 1, 2]
    assert any("counted 0, 1, 2" in line for line in loaded.notices)


def test_a_folder_of_folders_gives_the_classes(tmp_path: Path) -> None:
    for name in ("dogs/2.png", "cats/1.png", "cats/0.png"):
        _save(tmp_path / "named" / name, _noise(8, 8, 3))
    (tmp_path / "named" / "empty").mkdir()
    loaded = load_images([str(tmp_path / "named")], COLOUR)
    assert loaded.batch.names == ("cats/0.png", "cats/1.png", "dogs/2.png")
    assert loaded.batch.labels.tolist() == [0, 0, 1]
    assert loaded.notices == ()
    for name in ("7/a.png", "03/b.png"):
        _save(tmp_path / "numbered" / name, _noise(8, 8, 3))
    assert load_images([str(tmp_path / "numbered")], COLOUR).batch.labels.tolist() == [3, 7]


def test_bundled_photographs_are_those_of_the_python_api() -> None:
    loaded = load_images(["bundled:astronaut, cat"], COLOUR)
    expected = ls.bundled_batch(["astronaut", "cat"], size=8)
    assert torch.equal(loaded.batch.images, expected.images)
    assert torch.equal(loaded.batch.labels, expected.labels)
    assert loaded.batch.names == expected.names
    assert loaded.notices == ()
    assert len(load_images(["bundled:"], COLOUR).batch) == len(ls.bundled_names())


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    cut = tmp_path / "cut.png"
    _save(tmp_path / "whole.png", _noise(64, 64, 3))
    cut.write_bytes((tmp_path / "whole.png").read_bytes()[:2000])
    for path in (text, cut):
        with pytest.raises(BadInput, match=rf"'{path}' cannot be read as an image"):
            load_images([str(path)], COLOUR)
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(BadInput, match="32-bit"):
        load_images([str(tmp_path / "float.tif")], COLOUR)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no images"):
        load_images([str(tmp_path / "empty")], COLOUR)
    with pytest.raises(BadInput, match="no image or folder"):
        load_images([str(tmp_path / "nowhere.png")], COLOUR)
    with pytest.raises(UnknownName, match="Did you mean 'cat'"):
        load_images(["bundled:catt"], COLOUR)
    with pytest.raises(BadInput, match="No images"):
        load_images([], COLOUR)


def test_labels_must_fit(tmp_path: Path) -> None:
    source = _save(tmp_path / "11" / "a.png", _noise(8, 8, 3))
    with pytest.raises(BadInput, match=r"Label 11 of '11/a.png' is out of range: the model has 10 classes, 0 to 9"):
        load_images([str(tmp_path)], COLOUR)
    with pytest.raises(BadInput, match="Label -1"):
        load_images([source], COLOUR, [-1])
    with pytest.raises(BadInput, match="2 labels were given for 1 images"):
        load_images([source], COLOUR, [1, 2])
    with pytest.raises(BadInput, match="4 channels"):
        load_images([source], ls.InputSpec(shape=(4, 8, 8), num_classes=10))
    # Counted classes wrap around where the model has few.
    few = ls.InputSpec(shape=(3, 8, 8), num_classes=2)
    assert load_images([source, source, source], few).batch.labels.tolist() == [0, 1, 0]
