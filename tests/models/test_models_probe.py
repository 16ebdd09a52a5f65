"""Modules nobody has an adapter for: what a few forward passes show about them."""

import pytest
import torch
from small_models import wrap
from torch import Tensor, nn

from leakscope.models import Anatomy, describe


def look(module: nn.Module) -> Anatomy:
    return wrap(module).anatomy


class Backwards(nn.Module):
    """The classifier is declared first, a bigger linear layer of the same width last, and a decoy never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)
        self.decoy = nn.Linear(16, 4)
        self.stem = nn.Conv2d(3, 16, 8)
        self.gate = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x).flatten(1)
        y = self.head(z.relu())
        self.gate(z)  # runs last, and does not matter
        return y


def test_the_classifier_is_the_one_whose_output_comes_out() -> None:
    anatomy = look(Backwards())
    assert anatomy.classifier is not None
    assert anatomy.classifier.module == "head"
    assert anatomy.first_layer is not None
    assert anatomy.first_layer.module == "stem"
    assert any("No adapter knows Backwards" in n for n in anatomy.notes)


def test_a_convolutional_head_is_found() -> None:
    anatomy = look(nn.Sequential(nn.Conv2d(3, 8, 8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten()))
    assert anatomy.classifier is not None
    assert anatomy.classifier.module == "2"


@pytest.mark.parametrize("after", [nn.Softmax(-1), nn.LogSoftmax(-1), nn.Tanh(), nn.ReLU(inplace=True)])
def test_whatever_follows_the_last_layer_makes_the_classifier_unknown(after: nn.Module) -> None:
    anatomy = look(nn.Sequential(nn.Flatten(), nn.Linear(192, 4), after))
    assert anatomy.classifier is None
    assert any("classifier is not known" in n for n in anatomy.notes)


class OwnBatchNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True) if self.training else x


class AlwaysMixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean(0, keepdim=True) * len(x)


class AlwaysNoisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-6 * torch.randn_like(x)


class TrainShift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.training else x


class TrainTuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> object:
        y = self.fc(x.flatten(1))
        return (y, y) if self.training else y


def between(middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), middle, nn.Linear(16, 4))


def test_odd_behaviour_is_described() -> None:
    own = look(between(OwnBatchNorm()))
    assert own.mixes_samples == ("",)
    assert not own.mixes_in_evaluation
    always = look(between(AlwaysMixing()))
    assert always.mixes_in_evaluation
    noisy = look(between(AlwaysNoisy()))
    assert noisy.stochastic == ("2",)
    assert any("even in evaluation mode: 2" in n for n in noisy.notes)
    assert any("Train mode changes its output" in n for n in look(between(TrainShift())).notes)
    assert any("a tuple of 2" in n for n in look(TrainTuple()).notes)
    plain = look(between(nn.ReLU()))
    assert not plain.mixes_samples
    assert not plain.stochastic
    assert len(plain.notes) == 1


class Untrainable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("frozen for deployment")
        return x


def test_a_model_without_a_train_mode_is_described_by_type() -> None:
    anatomy = look(nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Dropout(0.3), Untrainable(), nn.Linear(16, 4)))
    assert anatomy.stochastic == ("2",)
    assert any("Could not be run in train mode" in n and "frozen for deployment" in n for n in anatomy.notes)


def test_mixing_is_seen_without_a_classifier() -> None:
    softmaxed = nn.Sequential(between(AlwaysMixing()), nn.Softmax(-1))
    assert look(softmaxed).mixes_in_evaluation
    assert dict(describe(wrap(softmaxed)))["mixes samples"] == "yes, even in evaluation mode"


def test_pixels_changed_on_the_way_are_noted() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x - 1

    anatomy = look(nn.Sequential(Scaled(), nn.Flatten(), nn.Linear(192, 4)))
    assert any("The pixels are changed before they reach '2'" in n for n in anatomy.notes)
