"""Training: it learns, it resumes with the same bits, and it refuses what it cannot do well."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from leakscope import load_model
from leakscope.audit.labelled import Labelled, load_labelled
from leakscope.audit.training import TrainingPlan, accuracy, train
from leakscope.audit.training_files import trained_by
from leakscope.cli import app
from leakscope.errors import BadInput
from leakscope.types import InputSpec

SPEC = InputSpec(shape=(3, 8, 8), num_classes=2)
MODEL = "leakscope:resnet20"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def striped(count: int, seed: int) -> Labelled:
    """Stripes across or along, in random colours: what a flip or a shift leaves as it is."""
    generator = seeded(seed)
    labels = torch.arange(count) % 2
    colour = torch.randint(100, 255, (count, 3, 1, 1), generator=generator)
    rows = (torch.arange(8) // 2 % 2).view(1, 1, 8, 1).expand(count, 1, 8, 8)
    stripes = torch.where(labels.view(-1, 1, 1, 1) == 0, rows, rows.transpose(2, 3))
    return Labelled(images=(stripes * colour).to(torch.uint8), labels=labels)


def folder(root: Path, *, each: int = 6) -> Path:
    data = striped(2 * each, 0)
    for index, (image, label) in enumerate(zip(data.images, data.labels.tolist(), strict=True)):
        place = root / ("across", "along")[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy())).save(place / f"{index}.png")
    return root


def model():
    return load_model(MODEL, num_classes=2, image_size=8, seed=0)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_it_learns(optimiser):
    trained = model()
    epochs = train(trained, striped(64, 0), striped(40, 1), TrainingPlan(epochs=3, batch_size=8, optimiser=optimiser))
    assert epochs[-1].loss < 0.5 * epochs[0].loss
    assert epochs[-1].held_out == accuracy(trained, striped(40, 1)) >= 0.9
    assert not any(m.training for _, m in trained.named_modules())


def test_half_precision_learns_and_leaves_weights_in_single():
    trained, single = model(), model()
    plan = TrainingPlan(epochs=3, batch_size=8, precision="bfloat16")
    epochs = train(trained, striped(64, 0), striped(40, 1), plan)
    train(single, striped(64, 0), striped(40, 1), replace(plan, precision="float32"))
    assert epochs[-1].held_out >= 0.9
    assert {value.dtype for _, value in trained.named_parameters()} == {torch.float32}
    state = single.state_dict()
    assert any(not torch.equal(value, state[name]) for name, value in trained.state_dict().items()), "not used"


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_broken_training_ends_with_the_same_bits(tmp_path, optimiser):
    plan = TrainingPlan(epochs=3, batch_size=8, optimiser=optimiser)
    data, test = striped(24, 0), striped(8, 1)
    whole = model()
    train(whole, data, test, plan)
    first, second = model(), model()
    asked = []
    done = train(
        first, data, test, plan, checkpoint=tmp_path / "c.safetensors", told=asked.append, stop=lambda: len(asked) >= 1
    )
    assert [epoch.number for epoch in done] == [1]
    again = train(second, data, test, plan, checkpoint=tmp_path / "c.safetensors")
    assert [epoch.number for epoch in again] == [2, 3]
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in whole.state_dict().items())
    with pytest.raises(BadInput, match="another training"):
        train(model(), striped(24, 5), test, plan, checkpoint=tmp_path / "c.safetensors")
    with pytest.raises(BadInput, match="another training"):
        train(model(), data, test, replace(plan, seed=1), checkpoint=tmp_path / "c.safetensors")


def test_divergence_is_said():
    with pytest.raises(BadInput, match="smaller learning rate"):
        train(model(), striped(32, 0), striped(8, 1), TrainingPlan(epochs=2, batch_size=8, lr=1e30))


def test_folders_and_zips_read_alike(tmp_path):
    root = folder(tmp_path / "data")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for file in root.rglob("*.png"):
            archive.write(file, Path("data") / file.relative_to(root))
        archive.writestr("data/README.txt", "not an image")
    from_folder = load_labelled(root, SPEC, held_out=0.25, generator=seeded())
    from_zip = load_labelled(tmp_path / "data.zip", SPEC, held_out=0.25, generator=seeded())
    assert from_folder[2] == from_zip[2] == ("across", "along")
    for one, other in zip(from_folder[:2], from_zip[:2], strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    assert (len(from_zip[0]), len(from_zip[1])) == (9, 3)
    few, _, _ = load_labelled(root, SPEC, held_out=0.5, limit=2, generator=seeded())
    assert len(few) == 2


def test_a_test_folder_is_held_out(tmp_path):
    folder(tmp_path / "set" / "train")
    folder(tmp_path / "set" / "test", each=2)
    data, test, classes = load_labelled(tmp_path, SPEC, generator=seeded())
    assert (len(data), len(test), classes) == (12, 4, ("across", "along"))
    data, test, _ = load_labelled(tmp_path, SPEC, limit=3, test_limit=1, generator=seeded())
    assert (len(data), len(test)) == (6, 2)


def test_what_cannot_be_trained_on_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no folders of images"):
        load_labelled(tmp_path / "empty", SPEC, generator=seeded())
    (tmp_path / "noise.zip").write_bytes(b"PK not a zip")
    with pytest.raises(BadInput, match="neither a folder nor a zip"):
        load_labelled(tmp_path / "noise.zip", SPEC, generator=seeded())
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("a/1.png", b"no picture")
        archive.writestr("b/1.png", b"no picture")
    with pytest.raises(BadInput, match="cannot be read as an image"):
        load_labelled(tmp_path / "bad.zip", SPEC, generator=seeded())
    with pytest.raises(BadInput, match="num-classes"):
        load_labelled(folder(tmp_path / "d"), replace(SPEC, num_classes=1), generator=seeded())


def test_the_command_writes_weights_that_load(tmp_path):
    root, out = folder(tmp_path / "data"), tmp_path / "weights.safetensors"
    arguments = ["train", MODEL, str(root), "--epochs", "2", "--batch-size", "4", "--num-classes", "2"]
    arguments += ["--image-size", "8", "-o", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "epoch 2/2" in done.output
    assert "held-out images" in done.output
    assert trained_by(out)["classes"] == ["across", "along"]
    loaded = load_model(MODEL, num_classes=2, image_size=8, weights=out)
    assert torch.equal(loaded.state_dict()["conv1.weight"], load_file(out)["conv1.weight"])
    assert not (tmp_path / "weights.checkpoint.safetensors").exists()
    assert "nothing is left" in CliRunner().invoke(app, arguments).output
    other = CliRunner().invoke(app, [*arguments, "--seed", "3"])
    assert other.exit_code == 2
    assert "holds other weights" in " ".join(other.output.split())
    pickled = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "weights.pt")])
    assert pickled.exit_code == 2
