"""Weights files: what fits is loaded, what does not is named, and nothing hostile is run."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from leakscope.errors import BadInput
from leakscope.models import VisionModel, load_model
from leakscope.models.weights import read_weights

NAME = "leakscope:resnet20"


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in load_model(NAME, seed=9).state_dict().items()}


def load(path: Path) -> VisionModel:
    return load_model(NAME, seed=1, weights=path)


WRITERS = {
    "plain.safetensors": lambda state, path: save_file(state, path),
    "plain.pt": lambda state, path: torch.save(state, path),
    "nested.pth": lambda state, path: torch.save({"state_dict": state, "epoch": 3}, path),
    "model.ckpt": lambda state, path: torch.save({"model": {"state_dict": state}, "optimizer": {}}, path),
    "prefixed.pt": lambda state, path: torch.save({f"module.{k}": v for k, v in state.items()}, path),
    "old.bin": lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False),
    "uncounted.safetensors": lambda state, path: save_file(
        {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}, path
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_accepted_form_gives_the_same_model(kind: str, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / kind
    WRITERS[kind](state, path)
    loaded = load(path).state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in state.items())


def test_what_does_not_fit_is_named_and_nothing_is_written(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    bad = dict(state)
    del bad["bn1.weight"]
    bad["extra.weight"] = torch.zeros(2)
    bad["linear.weight"] = torch.zeros(100, 64)
    save_file(bad, path)
    with pytest.raises(BadInput) as caught:
        load(path)
    message = str(caught.value)
    assert "missing: bn1.weight" in message
    assert "unexpected: extra.weight" in message
    assert "linear.weight is (100, 64), the model's (10, 64)" in message
    model = load_model(NAME, seed=1)
    before = model.fingerprint()
    with pytest.raises(BadInput):
        model.load_state_dict(bad)
    assert model.fingerprint() == before


def test_a_long_list_is_shortened(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(BadInput, match=r"and \d+ more"):
        load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused_by_name(
    value: float, state: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    state["layer2.0.conv1.weight"][0, 0, 0, 0] = value
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(BadInput, match=r"NaN or infinite values in layer2\.0\.conv1\.weight"):
        load(tmp_path / "w.safetensors")


class Touch:
    """Unpickling this would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.path}'",)


@pytest.mark.parametrize("form", ["pickle", "torch", "nested", "module"])
@pytest.mark.parametrize("suffix", [".pt", ".bin", ".pkl", ".safetensors"])
def test_code_in_a_file_is_never_run(form: str, suffix: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "was_run", tmp_path / f"evil{suffix}"
    if form == "pickle":
        path.write_bytes(pickle.dumps({"weight": Touch(marker)}))
    elif form == "module":
        torch.save(load_model("leakscope:mlp?hidden=2", image_size=2).module, path)
    else:
        inner = {"linear.weight": Touch(marker)}
        torch.save({"state_dict": inner} if form == "nested" else inner, path)
    with pytest.raises(BadInput) as caught:
        load(path)
    assert not marker.exists()
    assert str(path) in str(caught.value)
    if suffix != ".safetensors":
        assert "could run code" in str(caught.value)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".pt", ".safetensors", ".bin"]))
def test_random_bytes_are_refused(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"noise{suffix}"
    path.write_bytes(content)
    with pytest.raises(BadInput):
        load_model("leakscope:mlp?hidden=2", image_size=2, weights=path)


@pytest.mark.parametrize("kind", ["plain.safetensors", "plain.pt"])
@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.99])
def test_truncated_files_are_refused(kind: str, keep: float, state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / kind
    WRITERS[kind](state, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(BadInput):
        load(path)


@pytest.mark.parametrize("content", [3, [torch.zeros(2)], {}, {"a": 3}, {"state_dict": {}}, torch.zeros(3)])
def test_files_without_named_tensors_are_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(BadInput, match="names to tensors"):
        read_weights(tmp_path / "w.pt")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.pt", tmp_path):
        with pytest.raises(BadInput, match="no weights file"):
            load(path)
