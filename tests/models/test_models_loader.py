"""The loader: every source, seeds, normalisation, user files, and names nobody knows."""

from pathlib import Path

import pytest
import torch
from torch import nn

from leakscope.errors import BadInput, UnknownName
from leakscope.models import VisionModel, load_model

FACTORIES = """
import torch
from torch import nn
from leakscope.models import VisionModel
from leakscope.types import InputSpec

class Tiny(nn.Module):
    def __init__(self, classes, size):
        super().__init__()
        self.fc = nn.Linear(3 * size * size, classes)

    def forward(self, x):
        return self.fc(x.flatten(1))

def bare():
    return Tiny(4, 224)

def sized(image_size=16, num_classes=6):
    return Tiny(num_classes, image_size)

def drawn(generator):
    tiny = Tiny(4, 8)
    nn.init.normal_(tiny.fc.weight, generator=generator)
    return tiny

def whole():
    spec = InputSpec(shape=(3, 8, 8), num_classes=4)
    return VisionModel(Tiny(4, 8), input=spec, mean=(0.1, 0.2, 0.3), std=(1, 1, 2), name="mine")

def wrong():
    return "a string"

def detector():
    class Boxes(nn.Module):
        def forward(self, x):
            return {"boxes": x}
    return Boxes()

not_callable = 3
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "my models.py"
    path.write_text(FACTORIES)
    return path


def test_timm_by_name_with_its_own_normalisation() -> None:
    model = load_model("timm:vit_tiny_patch16_224", num_classes=5, image_size=32, seed=1)
    assert model.input.shape == (3, 32, 32)
    assert model.input.num_classes == 5
    assert model.mean.flatten().tolist() == [0.5, 0.5, 0.5]  # timm's configuration for this family
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    assert model.name == "timm:vit_tiny_patch16_224"


def test_timm_channels_defaults_and_models_that_take_any_size() -> None:
    grey = load_model("timm:resnet10t", channels=1, image_size=48)
    assert grey.input.shape == (1, 48, 48)
    assert grey.input.num_classes == 1000
    assert grey.mean.flatten().tolist() == pytest.approx([(0.485 + 0.456 + 0.406) / 3])
    fixed = load_model("timm:test_vit")
    assert fixed.input.shape == (3, 160, 160)  # its configuration says so


def test_torchvision_by_name() -> None:
    model = load_model("torchvision:squeezenet1_1", num_classes=3, image_size=64)
    assert model.input.shape == (3, 64, 64)
    assert model.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert model.anatomy.mixes_samples == ()
    default = load_model("torchvision:mobilenet_v3_small")
    assert (default.input.shape, default.input.num_classes) == ((3, 224, 224), 1000)
    with pytest.raises(BadInput, match="3 channels"):
        load_model("torchvision:resnet18", channels=1)


@pytest.mark.parametrize("name", ["timm:test_vit", "torchvision:squeezenet1_1", "leakscope:convnet64?width=4"])
def test_the_seed_alone_decides_the_weights(name: str) -> None:
    def load(seed: int) -> VisionModel:
        return load_model(name, num_classes=3, seed=seed)

    before = torch.get_rng_state()
    first = load(3).fingerprint()
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)
    assert load(3).fingerprint() == first
    assert load(4).fingerprint() != first


def test_normalisation_can_be_given() -> None:
    model = load_model("leakscope:resnet20", mean=(0, 0, 0), std=(1, 1, 1))
    x = torch.rand(1, 3, 32, 32)
    assert torch.equal(model.normalise(x), x)
    with pytest.raises(BadInput, match="one value per channel"):
        load_model("leakscope:resnet20", mean=(0,))


def test_user_files(user_file: Path) -> None:
    bare = load_model(f"{user_file}:bare")
    assert (bare.input.shape, bare.input.num_classes) == ((3, 224, 224), 4)
    assert bare.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    sized = load_model(f"{user_file}:sized", image_size=12, num_classes=9)
    assert (sized.input.shape, sized.input.num_classes) == ((3, 12, 12), 9)
    whole = load_model(f"{user_file}:whole")
    assert whole.std.flatten().tolist() == [1, 1, 2]
    assert whole.input.shape == (3, 8, 8)
    assert load_model(f"{user_file}:whole", mean=(0, 0, 0)).mean.flatten().tolist() == [0, 0, 0]
    for factory in ("bare", "drawn"):
        options = {} if factory == "bare" else {"image_size": 8}
        prints = [load_model(f"{user_file}:{factory}", seed=s, **options).fingerprint() for s in (1, 1, 2)]
        assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("factory", "options", "says"),
    [
        ("baree", {}, "Did you mean 'bare'"),
        ("not_callable", {}, "Unknown factory"),
        ("wrong", {}, "returned a str"),
        ("detector", {}, "a dict with keys boxes"),
        ("bare", {"image_size": 8}, "could not be run"),
        ("bare", {"num_classes": 5}, "K = 4, not 5 classes"),
        ("whole", {"image_size": 16}, "another size"),
    ],
)
def test_user_files_that_do_not_work(user_file: Path, factory: str, options: dict[str, int], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        load_model(f"{user_file}:{factory}", **options)


def test_user_files_that_cannot_be_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('boom')")
    with pytest.raises(BadInput, match="RuntimeError: boom"):
        load_model(f"{broken}:make")
    broken.write_text("def (")
    with pytest.raises(BadInput, match="SyntaxError"):
        load_model(f"{broken}:make")
    with pytest.raises(BadInput, match="no file"):
        load_model(f"{tmp_path / 'absent.py'}:make")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("leakscope:resnet17", "Did you mean 'resnet18'"),
        ("timm:vit_tinyy_patch16_224", "Did you mean 'vit_tiny_patch16_224'"),
        ("torchvision:resnet-18", "Did you mean 'resnet18'"),
        ("tim:resnet18", "Did you mean 'timm'"),
    ],
)
def test_unknown_names_get_the_nearest(name: str, says: str) -> None:
    with pytest.raises(UnknownName, match=says):
        load_model(name)


@pytest.mark.parametrize(
    "name", ["torchvision:fasterrcnn_resnet50_fpn", "torchvision:fcn_resnet50", "torchvision:r3d_18"]
)
def test_torchvision_models_that_are_no_classifiers_of_images_are_unknown(name: str) -> None:
    with pytest.raises(UnknownName):
        load_model(name)


@pytest.mark.parametrize("name", ["resnet18", "", ":", "leakscope:", "file.py", "file.py:"])
def test_names_without_a_source(name: str) -> None:
    with pytest.raises(BadInput, match=r"names no model|Unknown model source"):
        load_model(name)


def test_a_forgotten_source_is_suggested() -> None:
    with pytest.raises(BadInput, match="Did you mean 'leakscope:resnet18'"):
        load_model("resnet18")


@pytest.mark.parametrize("options", [{"num_classes": 0}, {"image_size": -1}, {"channels": 0}])
def test_sizes_below_one_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="at least 1"):
        load_model("leakscope:resnet20", **options)


def test_a_size_a_model_cannot_have_is_refused() -> None:
    with pytest.raises(BadInput):
        load_model("torchvision:vit_b_16", image_size=30)


def test_distilled_training_mode_is_described_not_refused() -> None:
    model = load_model("timm:deit_tiny_distilled_patch16_224", image_size=32, num_classes=3)
    model.module.set_distilled_training(True)
    twin = VisionModel(model.module, input=model.input, mean=(0, 0, 0), std=(1, 1, 1), name="distilled")
    assert any("a tuple of 2" in note for note in twin.anatomy.notes)


def test_the_loaded_module_is_plain(tmp_path: Path) -> None:
    model = load_model("leakscope:mlp?hidden=4", image_size=4)
    assert isinstance(model.module, nn.Module)
    assert all(p.requires_grad for p in model.parameters())
