"""What VisionModel refuses, and what it says."""

import pytest
import torch
from torch import Tensor, nn

from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.types import InputSpec


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, stride=4)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bn(self.conv(x)).mean((2, 3)))


def wrap(module: nn.Module, **changes: object) -> VisionModel:
    spec = InputSpec(shape=(3, 8, 8), num_classes=4)
    options: dict[str, object] = {"input": spec, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "name": "test"}
    return VisionModel(module, **(options | changes))  # pyright: ignore[reportArgumentType]


class Returns(nn.Module):
    def __init__(self, make: object) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 4)
        self.make = make

    def forward(self, x: Tensor) -> object:
        return self.make(self.fc(x.flatten(1)))  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda z: (z, z), r"a tuple of 2 \(\(1, 4\), \(1, 4\)\)"),
        (lambda z: {"logits": z, "aux": z}, "a dict with keys logits, aux"),
        (lambda z: [{"boxes": z}], "a list of 1"),
        (lambda z: z[0], r"shape \(4,\)"),
        (lambda z: z[:, :, None, None], r"shape \(1, 4, 1, 1\)"),
        (lambda z: z[:, :3], "K = 3, not 4 classes"),
        (lambda z: z.sum(), r"shape \(\)"),
        (lambda z: None, "a NoneType"),
        (lambda z: z / 0, "NaN or infinite"),
    ],
)
def test_what_is_no_classifier_is_refused_with_what_came_out(make: object, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        wrap(Returns(make))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["fc.weight", "bn.running_var"])
def test_weights_that_are_not_finite_are_refused_by_name(name: str, value: float) -> None:
    module = Small()
    module.state_dict()[name].view(-1)[0] = value
    with pytest.raises(BadInput, match=name):
        wrap(module)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mean": (0.0,)}, "one value per channel"),
        ({"std": (1.0, 0.0, 1.0)}, "positive"),
        ({"mean": (0.0, float("nan"), 0.0)}, "finite"),
        ({"std": (1.0, float("inf"), 1.0)}, "finite"),
        ({"input": InputSpec(shape=(1, 8, 8), num_classes=4), "mean": (0.0,), "std": (1.0,)}, "could not be run"),
        ({"input": InputSpec(shape=(3, 2, 2), num_classes=4)}, "could not be run"),
    ],
)
def test_a_wrong_description_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        wrap(Small(), **changes)


def test_lazy_modules_are_refused() -> None:
    with pytest.raises(BadInput, match="lazy"):
        wrap(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)))


def test_wrong_pixels_are_refused() -> None:
    model = wrap(Small())
    with pytest.raises(BadInput, match=r"\(3, 8, 8\)"):
        model(torch.rand(1, 3, 9, 9))
    with pytest.raises(BadInput, match=r"\(3, 8, 8\)"):
        model.functional({}, {}, torch.rand(1, 1, 8, 8))
