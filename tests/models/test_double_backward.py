"""differentiable_twice(): exact second derivatives through timm's and torchvision's attention, on CPU."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope._torchvision_ops import ensure
from leakscope.models import VisionModel
from leakscope.types import InputSpec

ensure()
import timm  # noqa: E402
from torchvision import models as tv  # noqa: E402

SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 4}
SMALL = {"img_size": 32, "embed_dim": 48, "depth": 2, "num_classes": 4}


class Encoder(nn.Module):
    """torch's own encoder layer, whose fast path in evaluation mode has no gradients at all."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 8, stride=8)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(self.patch(x).flatten(2).mT).mean(1))


BUILD = {
    "timm vit_tiny": lambda: timm.create_model("vit_tiny_patch16_224", **SMALL),
    "timm deit": lambda: timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, depth=2, num_classes=4),
    "timm swin_tiny": lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN),
    "timm swinv2": lambda: timm.create_model("swinv2_tiny_window8_256", **SWIN),
    "timm convnext": lambda: timm.create_model("convnext_atto", num_classes=4),
    "torchvision vit": lambda: tv.VisionTransformer(32, 16, 2, 3, 48, 96, num_classes=4),
    "torchvision swin_t": lambda: tv.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=4),
    "torchvision resnet18": lambda: tv.resnet18(num_classes=4),
    "torch encoder": Encoder,
}
FUSED = ("timm vit_tiny", "timm deit", "torchvision vit")


def build(name: str) -> VisionModel:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        module = BUILD[name]().double()
        for p in module.parameters():  # some heads start at zero, which would hide everything behind them
            p += 0.02 * torch.randn(p.shape)
    spec = InputSpec(shape=(3, 32, 32), num_classes=4)
    return VisionModel(module, input=spec, mean=(0.5,) * 3, std=(0.5,) * 3, name=name)


def objective(model: VisionModel, x: Tensor, *, create_graph: bool) -> Tensor:
    """Half the squared norm of the weight gradient: its derivative in x needs the second derivative."""
    loss = F.cross_entropy(model(x), torch.tensor([1]))
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=create_graph)
    return sum((g.square().sum() for g in gradients), torch.zeros((), dtype=x.dtype)) / 2


# In train mode, one image leaves ResNet-18's BatchNorm a single value per channel at this size.
@pytest.mark.parametrize(
    ("name", "training"), [(n, t) for n in BUILD for t in (False, True) if not (t and "resnet" in n)]
)
def test_second_derivative_equals_a_finite_difference(name: str, training: bool) -> None:
    model = build(name)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(1, 3, 32, 32, generator=generator, dtype=torch.float64).requires_grad_()
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    direction /= direction.norm()
    step = 1e-6
    with model.mode(training), model.differentiable_twice():
        (gradient,) = torch.autograd.grad(objective(model, x, create_graph=True), x)
        ahead, behind = (objective(model, x + s * step * direction, create_graph=False) for s in (1, -1))
    measured = float(ahead - behind) / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(measured, rel=1e-4, abs=1e-6 * float(gradient.norm()))
    assert gradient.norm() > 0


@pytest.mark.parametrize("name", FUSED)
def test_it_is_needed_and_changes_no_values(name: str) -> None:
    model = build(name)
    x = torch.rand(1, 3, 32, 32, dtype=torch.float64).requires_grad_()
    with model.mode(False):
        plain = model(x)
        with model.differentiable_twice():
            assert torch.allclose(model(x), plain, atol=1e-10)
        with pytest.raises(RuntimeError, match="not implemented"):
            torch.autograd.grad(objective(model, x, create_graph=True), x)


def test_it_leaves_torchs_settings_as_they_were() -> None:
    def settings() -> tuple[bool, ...]:
        cuda = torch.backends.cuda
        flags = (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled())
        return (*flags, torch.backends.mha.get_fastpath_enabled())

    model = build("timm vit_tiny")
    before = settings()
    with model.differentiable_twice():
        assert settings() == (False, False, True, False)
    assert settings() == before
    with pytest.raises(KeyError), model.differentiable_twice():
        raise KeyError
    assert settings() == before
