"""Our own models: published sizes, structure against outside references, and reproducible weights."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope._torchvision_ops import ensure
from leakscope.errors import BadInput, UnknownName
from leakscope.models import MODELS, VisionModel, list_models, load_model
from leakscope.models.blueprint import Blueprint, model
from leakscope.models.zoo.resnet import ResidualBlock

ensure()
import torchvision  # noqa: E402

SMALL = [n for n in MODELS if not n.endswith(("224", "-32", "face-vit"))]  # those take seconds, or have their own tests


def count(m: VisionModel) -> int:
    return sum(p.numel() for p in m.parameters())


def images(m: VisionModel, batch: int = 2) -> Tensor:
    return torch.rand(batch, *m.input.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("april-b-28", 7_123_210),  # APRIL, Table 2
        ("lenet-dlg", 3 * 12 * 25 + 12 + 2 * (12 * 12 * 25 + 12) + 7690),  # fc 768 → 10
        ("resnet20", 269_722),  # He et al. 2016, Table 6: 0.27 M
        ("resnet56", 853_018),  # 0.85 M
        ("resnet18", 11_173_962),  # the common CIFAR variant
        ("convnet64", 2_904_970),
    ],
)
def test_parameter_counts(name: str, parameters: int) -> None:
    assert count(load_model(f"leakscope:{name}")) == parameters


def test_april_without_one_attention_or_the_table_has_the_papers_other_counts() -> None:
    m = load_model("leakscope:april-b-28")
    state = dict(m.named_parameters())
    assert count(m) - state["pos_embed"].numel() == 7_116_682
    assert count(m) - sum(p.numel() for n, p in state.items() if n.startswith("blocks.2.attention.")) == 6_533_002
    assert state["pos_embed"].shape == (1, 17, 384)
    assert not any(n.endswith("qkv.bias") for n in state)


def test_resnet18_is_torchvisions_but_for_the_stem() -> None:
    """With torchvision's stem swapped for a 3×3 convolution without pooling, and weights carried over in order."""
    ours = load_model("leakscope:resnet18", seed=4)
    theirs = torchvision.models.resnet18(num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = nn.Identity()
    carried = dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True))
    theirs.load_state_dict(carried)
    x = images(ours)
    for training in (False, True):
        theirs.train(training)
        with torch.no_grad(), ours.mode(training):
            assert torch.allclose(ours(x), theirs(ours.normalise(x)), atol=1e-4)


def test_option_a_shortcut_keeps_every_other_pixel_and_pads_channels() -> None:
    block = ResidualBlock(4, 8, 2, projected=False)
    x = torch.rand(1, 4, 6, 6)
    short = block.shortcut(x)
    assert short.shape == (1, 8, 3, 3)
    assert torch.equal(short[:, 2:6], x[:, :, ::2, ::2])
    assert not short[:, :2].any()
    assert not short[:, 6:].any()
    assert not any("downsample" in n for n, _ in block.named_parameters())


def test_convnet_pools_twice_by_three_and_has_breachings_order() -> None:
    m = load_model("leakscope:convnet64")
    widths = [p.shape[0] for n, p in m.named_parameters() if n.startswith("conv") and n.endswith("weight")]
    assert widths == [64, 128, 128, 256, 256, 256, 256, 256]
    assert dict(m.named_parameters())["linear.weight"].shape == (10, 36 * 64)
    kinds = [n.rstrip("0123456789") for n, _ in m.module.named_children()]
    assert kinds == [*(["conv", "bn", "relu"] * 6), "pool", *(["conv", "bn", "relu"] * 2), "pool", "flatten", "linear"]
    with pytest.raises(BadInput, match="at least 9 px"):
        load_model("leakscope:convnet64", image_size=8)


def test_preact_block_is_its_formula() -> None:
    m = load_model("leakscope:resnet18-preact", seed=2)
    block = m.module.get_submodule("layer2.0").eval()
    x = torch.randn(2, 64, 8, 8, generator=torch.Generator().manual_seed(1))
    o = F.relu(block.bn1(x))
    assert torch.allclose(block(x), block.conv2(F.relu(block.bn2(block.conv1(o)))) + block.shortcut(o))
    assert "bn" not in [n for n, _ in m.module.named_children()][-1]
    assert [n for n, _ in m.module.named_children()][:3] == ["conv1", "bn1", "relu"]


def test_april_attention_equals_torchs() -> None:
    attention = load_model("leakscope:april-b", seed=1).module.get_submodule("blocks.0.attention")
    x = torch.randn(2, 17, 384, generator=torch.Generator().manual_seed(1))
    q, k, v = attention.qkv(x).view(2, 17, 3, 4, 96).permute(2, 0, 3, 1, 4)
    reference = attention.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 17, 384))
    assert torch.allclose(attention(x), reference, atol=1e-5)


def test_april_a_obeys_the_closed_form() -> None:
    """∂l/∂z zᵀ = Qᵀ ∂l/∂Q + Kᵀ ∂l/∂K + Vᵀ ∂l/∂V with ∂l/∂z = ∂l/∂E_pos (Theorem 3.1), only on Architecture A."""

    def gap(name: str) -> float:
        m = load_model(f"leakscope:{name}", seed=3).to(dtype=torch.float64)
        z: list[Tensor] = []
        handle = m.module.get_submodule("blocks.0").register_forward_pre_hook(lambda _, a: z.append(a[0].detach()[0]))
        parameters = dict(m.named_parameters())
        loss = F.cross_entropy(m(images(m, 1).double()), torch.tensor([1]))
        weight = parameters["blocks.0.attention.qkv.weight"]
        position, qkv = torch.autograd.grad(loss, [parameters["pos_embed"], weight])
        handle.remove()
        left = position[0].T @ z[0]
        right = weight.detach().T @ qkv
        return float((left - right).norm() / left.norm())

    assert gap("april-a") < 1e-8
    assert gap("april-b") > 1e-2


def test_lenets_are_one_network_with_weights_spread_over_the_unit_interval() -> None:
    dlg, lti = load_model("leakscope:lenet-dlg", seed=5), load_model("leakscope:lenet-lti", seed=5)
    assert all(torch.equal(a, b) for a, b in zip(dlg.parameters(), lti.parameters(), strict=True))
    everything = torch.cat([p.detach().flatten() for p in dlg.parameters()])
    assert -0.5 <= float(everything.min()) < -0.49
    assert 0.49 < float(everything.max()) <= 0.5
    assert abs(float(everything.var()) - 1 / 12) < 0.005
    assert {type(m) for _, m in dlg.module.named_children()} == {nn.Conv2d, nn.Sigmoid, nn.Flatten, nn.Linear}


@pytest.mark.parametrize("size", [27, 28, 32, 33, 64])
def test_lenet_takes_any_size(size: int) -> None:
    m = load_model("leakscope:lenet-dlg", image_size=size, channels=1, num_classes=3)
    assert m(images(m)).shape == (2, 3)


def test_april_sizes() -> None:
    large = MODELS["april-a-224"].value
    assert (large.image_size, large.num_classes) == (224, 1000)
    module = large.build(generator=torch.Generator().manual_seed(0))
    assert module.pos_embed.shape == (1, 197, 768)
    assert len(module.blocks) == 12
    with pytest.raises(BadInput, match="multiple of 4"):
        load_model("leakscope:april-a", image_size=30)


@pytest.mark.parametrize("name", SMALL)
def test_every_model_builds_reproducibly_and_answers(name: str) -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = load_model(f"leakscope:{name}", seed=7, num_classes=5)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    same, other = (
        MODELS[name].value.build(generator=torch.Generator().manual_seed(s), num_classes=5).state_dict() for s in (7, 8)
    )
    state = first.state_dict()
    assert all(torch.equal(state[k], same[k]) for k in same)
    assert not all(torch.equal(state[k], other[k]) for k in other)
    answer = first(images(first))
    assert answer.shape == ((2, 64 + 5, answer.shape[2]) if first.input.boxes else (2, 5))
    assert first.anatomy.family != "unknown"
    assert not any(m.training for _, m in first.named_modules())


@pytest.mark.parametrize("name", SMALL)
def test_every_model_can_be_differentiated_twice(name: str) -> None:
    m = load_model(f"leakscope:{name}", seed=7)
    x = images(m, 1).requires_grad_()
    labels = torch.tensor([[[1, 0.5, 0.5, 0.6, 0.6]]]) if m.input.boxes else torch.tensor([1])
    trained = [p for p in m.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(m.loss(m(x), labels), trained, create_graph=True)
    (second,) = torch.autograd.grad(sum(g.square().sum() for g in gradients), x)
    assert second.abs().max() > 0


def test_mlp_options() -> None:
    m = load_model("leakscope:mlp?hidden=32,16&activation=tanh", image_size=8)
    shapes = [tuple(p.shape) for n, p in m.named_parameters() if n.endswith("weight")]
    assert shapes == [(32, 192), (16, 32), (10, 16)]
    assert isinstance(m.module.act1, nn.Tanh)
    assert [tuple(p.shape) for p in load_model("leakscope:mlp?hidden=", image_size=4).parameters()] == [(10, 48), (10,)]
    for bad, says in {
        "hidden=a": "is not of type",
        "hiden=3": "Did you mean 'hidden'",
        "activation=rely": "Did you mean 'relu'",
        "hidden=0": "at least 1",
        "hidden": "Cannot read the model options",
    }.items():
        with pytest.raises(BadInput, match=says):
            load_model(f"leakscope:mlp?{bad}")


def test_the_list_has_a_line_for_each() -> None:
    rows = list_models()
    assert [r[0] for r in rows] == [f"leakscope:{n}" for n in MODELS]
    assert all(summary.endswith((".", ")")) or ":" in summary for _, summary, _ in rows)
    assert {"leakscope:resnet18", "leakscope:april-a", "leakscope:convnet64"} <= {r[0] for r in rows}


def test_a_name_can_be_taken_once_and_needs_a_docstring() -> None:
    with pytest.raises(ValueError, match="already a model"):

        @model("resnet18")
        def again(*, num_classes: int, image_size: int, channels: int) -> nn.Module:
            """Another one."""
            raise NotImplementedError

    with pytest.raises(ValueError, match="docstring"):
        model("nameless")(lambda num_classes, image_size, channels: nn.Identity())


def test_options_are_parsed_by_type() -> None:
    def factory(
        *, num_classes: int, image_size: int, channels: int, rate: float = 0.1, flag: bool = False, word: str = "a"
    ) -> nn.Module:
        module = nn.Identity()
        module.seen = (num_classes, image_size, channels, rate, flag, word)  # pyright: ignore
        return module

    blueprint = Blueprint(factory=factory)
    generator = torch.Generator().manual_seed(0)
    built = blueprint.build(generator=generator, options={"rate": "0.5", "flag": "True", "word": "b"})
    assert built.seen == (10, 32, 3, 0.5, True, "b")
    with pytest.raises(BadInput, match="true or false"):
        blueprint.build(generator=generator, options={"flag": "maybe"})
    with pytest.raises(UnknownName):
        blueprint.build(generator=generator, options={"num_classes": "3"})
