"""The linter names what was planted, and finds nothing in models that nobody touched.

Planting here is the least that a detector needs to be shown: weights in a layer, no attack.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import leakscope as ls
from leakscope.lint import Finding, lint
from leakscope.metrics import _lpips_weights as trained_weights
from leakscope.models import MODELS

SMALL = [name for name in MODELS if not name.endswith(("-224", "-32")) and name not in ("resnet18", "face-vit")]
OTHERS = [
    "timm:vit_tiny_patch16_224",
    "timm:convnext_atto",
    "timm:mobilenetv3_small_050",
    "timm:xcit_nano_12_p16_224",
    "timm:convit_tiny",  # starts some of its layers as identities, by design
    "torchvision:squeezenet1_1",
    "torchvision:shufflenet_v2_x0_5",
]


@pytest.mark.parametrize("name", [f"leakscope:{name}" for name in SMALL] + OTHERS)
def test_untouched_models_are_clean(name):
    assert lint(ls.load_model(name, seed=3)) == ()


@pytest.mark.parametrize("name", ["leakscope:convnet64?width=4", "leakscope:mlp?hidden=32", "leakscope:lenet-dlg"])
def test_training_leaves_nothing_that_looks_planted(name):
    """Overfitted to a few photographs with a large learning rate: far from the initialisation."""
    model = ls.load_model(name, num_classes=10, seed=0)
    batch = ls.bundled_batch(size=32)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.module.train()
    for _ in range(30):
        optimiser.zero_grad()
        loss = cross_entropy(model(batch.images), batch.labels)
        loss.backward()
        optimiser.step()
    assert lint(model) == ()


def test_real_trained_weights_are_clean():
    """AlexNet's convolutions as trained on ImageNet, where the package that carries them is installed."""
    try:
        layers, _ = trained_weights.find_weights()
    except ls.MissingExtra as error:
        pytest.skip(str(error))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts: list[nn.Module] = []
        for index, (kernel, bias) in enumerate(layers):
            layer = nn.Conv2d(*reversed(kernel.shape[:2]), kernel.shape[2], stride=4 if index == 0 else 1, padding=2)
            layer.weight, layer.bias = nn.Parameter(kernel.float()), nn.Parameter(bias.float())
            parts += [layer, nn.ReLU()]
        net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
    spec = ls.InputSpec(shape=(3, 32, 32), num_classes=10)
    assert lint(ls.VisionModel(net, input=spec, mean=[0.5] * 3, std=[0.25] * 3, name="alexnet")) == ()


def found(model: ls.VisionModel, parameter: str) -> list[Finding]:
    return [one for one in lint(model) if one.parameter == parameter]


def rewritten(name: str, parameter: str, change: Callable[[Tensor], Tensor]) -> ls.VisionModel:
    model = ls.load_model(name, num_classes=10, seed=0)
    with torch.no_grad():
        weight = dict(model.named_parameters())[parameter]
        weight.copy_(change(weight.clone()))
    return model


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


MLP = "leakscope:mlp?hidden=64,32"


@pytest.fixture(scope="module")
def first() -> str:
    return ls.load_model(MLP, num_classes=10).anatomy.first_layer.weight


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("measure", ["mean", "random"])
def test_imprint_layers(first, share, measure):
    """Rows that are one measurement up to scale, with biases in steps; also in a part of the layer only."""
    model = ls.load_model(MLP, num_classes=10, seed=0)
    state = dict(model.named_parameters())
    with torch.no_grad():
        weight, bias = state[first], state[first.replace("weight", "bias")]
        count = int(share * len(weight))
        one = torch.ones(weight.shape[1]) / weight.shape[1] if measure == "mean" else draw(weight.shape[1])
        weight[:count] = one * torch.linspace(1, 2, count)[:, None]
        bias[:count] = -torch.linspace(0, 1, count)
    (finding, *_) = found(model, first)
    assert finding.kind == "imprint layer"
    assert finding.confidence == "high"
    assert f"{count} of 64 rows" in finding.evidence
    assert "different biases" in finding.evidence


def test_a_single_measuring_row(first):
    def change(weight: Tensor) -> Tensor:
        weight[5] = 0.3
        return weight

    assert [one.kind for one in found(rewritten(MLP, first, change), first)] == ["constant rows"]


def test_identity_like_layers():
    name = "leakscope:mlp?hidden=64,64"
    model = ls.load_model(name, num_classes=10)
    second = next(n for n, p in model.named_parameters() if p.shape == (64, 64))
    for change, confidence in (
        (lambda w: torch.eye(64), "high"),
        (lambda w: -3 * torch.eye(64)[torch.randperm(64, generator=torch.Generator().manual_seed(0))], "high"),
        (lambda w: torch.eye(64) + 0.05 * draw(64, 64), "medium"),
    ):
        (finding, *_) = found(rewritten(name, second, change), second)
        assert (finding.kind, finding.confidence) == ("identity-like layer", confidence)


def test_convolutions_that_hand_pixels_on():
    name = "leakscope:convnet64?width=8"
    model = ls.load_model(name, num_classes=10)
    parameter = next(n for n, p in model.named_parameters() if p.ndim == 4 and p.shape[1] > 3)

    def dirac(weight: Tensor) -> Tensor:
        return nn.init.dirac_(torch.empty_like(weight))

    kinds = {one.kind for one in found(rewritten(name, parameter, dirac), parameter)}
    assert "identity-like layer" in kinds


@pytest.mark.parametrize("scale", [0.5, 0.9, 0.97, 0.99])
def test_trap_weights(first, scale):
    """In every row a random half negative, the other half positive and scaled down."""

    def trap(weight: Tensor) -> Tensor:
        rows = torch.empty_like(weight)
        size = draw(*weight.shape).abs() * 0.02
        generator = torch.Generator().manual_seed(1)
        for index in range(len(rows)):
            chosen = torch.randperm(weight.shape[1], generator=generator)
            half = weight.shape[1] // 2
            rows[index, chosen[:half]] = -size[index, chosen[:half]]
            rows[index, chosen[half:]] = scale * size[index, chosen[:half]]
        return rows

    (finding, *_) = found(rewritten(MLP, first, trap), first)
    assert (finding.kind, finding.confidence) == ("trap weights", "high")
    assert f"{scale:.2f}" in finding.evidence


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("rows are zero", lambda w: w * (torch.arange(len(w)) == 3)[:, None]),
        ("copies of each other", lambda w: w[torch.tensor([0, 1, 2, 3, 4, 5, 5, 5, 5, 9])]),
        ("A single feature", lambda w: w * torch.where(torch.arange(w.shape[1]) == 1, 1e3, 1.0)),
        ("times as large", lambda w: w * torch.where(torch.arange(len(w)) == 1, 1e3, 1.0)[:, None]),
    ],
)
def test_fishing_classifiers(words, change):
    head = ls.load_model(MLP, num_classes=10).anatomy.classifier.weight
    findings = found(rewritten(MLP, head, change), head)
    assert any(one.kind == "fishing classifier" and words in one.evidence for one in findings)


def test_biases_that_fix_the_answer():
    head = ls.load_model(MLP, num_classes=10).anatomy.classifier
    model = rewritten(MLP, head.bias, lambda b: torch.where(torch.arange(10) == 4, 0.0, 1000.0))
    assert "The biases are 1000 apart" in found(model, head.weight)[0].evidence


def test_blocks_out_of_family():
    name = "timm:vit_tiny_patch16_224"
    for factor in (0.0, 1e4):
        model = ls.load_model(name, seed=0)
        with torch.no_grad():
            dict(model.named_parameters())["blocks.5.attn.qkv.weight"].mul_(factor)
        assert [one.kind for one in lint(model)] == ["out-of-family weights"]


def test_loud_rows():
    parameter = "layer2.0.conv1.weight"

    def louder(weight: Tensor) -> Tensor:
        weight[3] *= 1e4
        return weight

    kinds = {one.kind for one in found(rewritten("leakscope:resnet20", parameter, louder), parameter)}
    assert "out-of-family rows" in kinds


def test_a_layer_in_front():
    class Fronted(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.front, self.inner = nn.Linear(3 * 32 * 32, 3 * 32 * 32), inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.front(x.flatten(1)).view_as(x))

    inner = ls.load_model("leakscope:lenet-dlg", num_classes=10, seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Fronted(inner.module)
    model = ls.VisionModel(net, input=inner.input, mean=[0.0] * 3, std=[1.0] * 3, name="fronted")
    assert [(one.parameter, one.kind) for one in lint(model)] == [("front.weight", "unexpected layer in front")]


def test_negative_variances():
    model = ls.load_model("leakscope:resnet20", num_classes=10, seed=0)
    name, buffer = next((n, b) for n, b in model.named_buffers() if n.endswith("running_var"))
    buffer[0] = -1.0
    assert [(one.parameter, one.confidence) for one in lint(model)] == [(name, "high")]


def test_against_a_reference():
    model = ls.load_model("leakscope:resnet20", num_classes=10, seed=0)
    generator = torch.Generator().manual_seed(0)
    earlier = {
        n: v + 0.01 * v.std() * torch.randn(v.shape, generator=generator) if v.ndim > 1 else v.clone()
        for n, v in model.state_dict().items()
    }
    assert lint(model, reference=earlier) == ()
    replaced = {**earlier, "layer2.0.conv1.weight": draw(*earlier["layer2.0.conv1.weight"].shape)}
    assert [one.kind for one in lint(model, reference=replaced)] == ["moved out of line"]
    without = {n: v for n, v in earlier.items() if n != "conv1.weight"}
    assert [(one.parameter, one.kind) for one in lint(model, reference=without)] == [
        ("conv1.weight", "another architecture")
    ]


def test_findings_say_what_they_would_allow(first):
    (finding, *_) = found(rewritten(MLP, first, lambda w: torch.ones_like(w)), first)
    text = str(finding)
    assert finding.parameter in text
    assert finding.allows in text
