"""Anatomies checked by what the named parameters do, not by what they are called.

The models are real timm and torchvision classes, made small so that all of this takes seconds.
"""

from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope._torchvision_ops import ensure
from leakscope.models import Anatomy, VisionModel, describe, load_model
from leakscope.models.families import family
from leakscope.types import InputSpec

ensure()
import timm  # noqa: E402
from torchvision import models as tv  # noqa: E402

CLASSES = 7
VIT = partial(timm.create_model, "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2)
SWIN = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "num_classes": CLASSES}
TV_SWIN = partial(
    tv.SwinTransformer, [4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=CLASSES, stochastic_depth_prob=0.2
)
TRANSFORMERS = {
    "vit": lambda: VIT(num_classes=CLASSES),
    "vit without qkv bias": lambda: VIT(num_classes=CLASSES, qkv_bias=False),
    "vit with qk norm": lambda: VIT(num_classes=CLASSES, qk_norm=True),
    "vit, average pool": lambda: VIT(num_classes=CLASSES, class_token=False, global_pool="avg"),
    "vit, table without class": lambda: VIT(num_classes=CLASSES, no_embed_class=True),
    "vit, registers": lambda: VIT(num_classes=CLASSES, reg_tokens=4),
    "vit, registers, bare table": lambda: VIT(num_classes=CLASSES, reg_tokens=4, no_embed_class=True),
    "vit, clip": lambda: VIT(num_classes=CLASSES, pre_norm=True),
    "vit, layer scale, dropout": lambda: VIT(
        num_classes=CLASSES, init_values=0.1, pos_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.2
    ),
    "deit": lambda: timm.create_model("deit_tiny_patch16_224", img_size=32, num_classes=CLASSES, depth=2),
    "deit distilled": lambda: timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, num_classes=CLASSES, depth=2
    ),
    "torchvision vit": lambda: tv.VisionTransformer(32, 8, 2, 3, 48, 96, num_classes=CLASSES),
    "torchvision vit, dropout": lambda: tv.VisionTransformer(
        32, 8, 2, 3, 48, 96, num_classes=CLASSES, dropout=0.1, attention_dropout=0.1, representation_size=24
    ),
    "april-a": lambda: load_model("leakscope:april-a", num_classes=CLASSES).module,
    "april-b": lambda: load_model("leakscope:april-b", num_classes=CLASSES).module,
}
SWINS = {
    "swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=32, window_size=4, **SWIN),
    "swin v2": lambda: timm.create_model("swinv2_tiny_window8_256", img_size=32, window_size=4, **SWIN),
    "torchvision swin": TV_SWIN,
    "torchvision swin v2": lambda: TV_SWIN(
        block=tv.swin_transformer.SwinTransformerBlockV2, downsample_layer=tv.swin_transformer.PatchMergingV2
    ),
}
CONVOLUTIONAL = {
    "resnet18": lambda: timm.create_model("resnet18", num_classes=CLASSES),
    "resnet, deep stem": lambda: timm.create_model("resnet26d", num_classes=CLASSES),
    "resnetv2": lambda: timm.create_model("resnetv2_18", num_classes=CLASSES),
    "convnext": lambda: timm.create_model("convnext_atto", num_classes=CLASSES),
    "convnext, overlapping stem": lambda: timm.create_model("convnext_atto_ols", num_classes=CLASSES),
    "torchvision resnet18": lambda: tv.resnet18(num_classes=CLASSES),
    "torchvision convnext": lambda: tv.ConvNeXt(
        [tv.convnext.CNBlockConfig(16, 32, 2), tv.convnext.CNBlockConfig(32, None, 3)], 0.1, num_classes=CLASSES
    ),
}
UNKNOWN = {
    "mobilenet": lambda: tv.mobilenet_v3_small(num_classes=CLASSES),
    "efficientnet": lambda: timm.create_model("efficientnet_lite0", num_classes=CLASSES),
    "vit with relative positions": lambda: timm.create_model(
        "vit_relpos_small_patch16_224", img_size=32, depth=2, num_classes=CLASSES
    ),
}
OWN = {
    name: partial(lambda name: load_model(f"leakscope:{name}", num_classes=CLASSES).module, name)
    for name in ("lenet-dlg", "convnet64?width=8", "resnet18", "resnet18-preact", "resnet20", "mlp")
}
ALL = TRANSFORMERS | SWINS | CONVOLUTIONAL | UNKNOWN | OWN


def wrap(module: nn.Module, shape: tuple[int, int, int] = (3, 8, 8), num_classes: int = 4) -> VisionModel:
    spec = InputSpec(shape=shape, num_classes=num_classes)
    return VisionModel(module, input=spec, mean=(0.4, 0.5, 0.6), std=(0.3, 0.2, 0.1), name="test")


@cache
def loaded(name: str) -> VisionModel:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        module = ALL[name]()
        for p in module.parameters():  # heads that start at zero and almost equal tokens would hide mistakes
            p += 0.02 * torch.randn(p.shape)
    return wrap(module, (3, 32, 32), CLASSES)


def images(model: VisionModel, batch: int = 1) -> Tensor:
    return torch.rand(batch, *model.input.shape, generator=torch.Generator().manual_seed(3))


def gradients(model: VisionModel, x: Tensor) -> dict[str, Tensor]:
    with model.mode(False):
        loss = F.cross_entropy(model(x), torch.arange(len(x)))
        names, parameters = zip(*model.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


@pytest.mark.parametrize("name", ALL)
def test_every_name_exists(name: str) -> None:
    model, a = loaded(name), loaded(name).anatomy
    tensors = {n for n, _ in model.named_parameters()} | {n for n, _ in model.named_buffers()}
    modules = {n for n, _ in model.named_modules()}
    layers = [x for x in (a.classifier, a.first_layer, a.patch_embedding) if x is not None]
    if a.first_attention is not None:
        assert set(a.first_attention.weights) | set(a.first_attention.biases) <= tensors
        layers += [a.first_attention.norm] if a.first_attention.norm else []
    for layer in layers:
        assert layer.weight in tensors
        assert (layer.bias in tensors) if layer.bias else f"{layer.module}.bias" not in tensors
        assert layer.module in modules
    if a.position_embedding is not None:
        assert a.position_embedding.name in tensors
    assert set(a.prefix_tokens) <= tensors
    assert {*a.blocks, *a.norms, *a.stochastic, *a.mixes_samples} <= modules


@pytest.mark.parametrize("name", ALL)
def test_the_classifier_bias_moves_its_logit_alone(name: str) -> None:
    model, head = loaded(name), loaded(name).anatomy.classifier
    assert head is not None
    assert head.bias is not None
    x, bias = images(model, 2), model.state_dict()[head.bias]
    with torch.no_grad(), model.mode(False):
        logits = model(x)
        for k in (0, 6):
            moved = model.functional({head.bias: bias + 0.5 * F.one_hot(torch.tensor(k), 7)}, {}, x) - logits
            expected = torch.zeros(2, 7)
            expected[:, k] = 0.5 * head.scale
            assert torch.allclose(moved, expected, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_the_first_layer_is_where_the_pixels_go(name: str) -> None:
    model, first = loaded(name), loaded(name).anatomy.first_layer
    assert first is not None
    seen: list[Tensor] = []
    handle = model.module.get_submodule(first.module).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = images(model)
    with torch.no_grad(), model.mode(False):
        model(x)
    handle.remove()
    assert torch.equal(seen[0].flatten(), model.normalise(x).flatten())


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_linear_patch_embedding_is_unfold_times_weight(name: str) -> None:
    model, patch = loaded(name), loaded(name).anatomy.patch_embedding
    assert patch is not None
    assert patch.linear
    state, x = model.state_dict(), images(model, 2)
    weight = state[patch.weight].flatten(1)
    tokens = F.unfold(model.normalise(x), patch.patch, stride=patch.patch).mT @ weight.T
    tokens = tokens + (state[patch.bias] if patch.bias else 0)
    assert tokens.shape[1] == patch.grid[0] * patch.grid[1]
    out: list[Tensor] = []
    handle = model.module.get_submodule(patch.module).register_forward_hook(lambda _m, _a, y: out.append(y))
    with torch.no_grad(), model.mode(False):
        model(x)
    handle.remove()
    assert torch.allclose(out[0].flatten(2).mT, tokens, atol=1e-4)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_position_and_patch_gradients_obey_the_linear_identity(name: str) -> None:
    """Δᵀ X = G (one image): rows of the table, prefix count, patch order and linearity all at once; and Σ Δ = ∂L/∂b."""
    model, a = loaded(name), loaded(name).anatomy
    patch, position = a.patch_embedding, a.position_embedding
    assert patch is not None
    assert position is not None
    assert position.learnable
    x = images(model)
    grads = gradients(model, x)
    delta = grads[position.name].flatten(0, -2)[position.prefix_in_table :]  # (P, D)
    assert len(delta) == patch.grid[0] * patch.grid[1]
    patches = F.unfold(model.normalise(x), patch.patch, stride=patch.patch)[0].T  # (P, C·p·p)
    expected = grads[patch.weight].flatten(1)
    assert torch.allclose(delta.T @ patches, expected, atol=1e-4 * float(expected.abs().max()))
    if patch.bias:
        assert torch.allclose(delta.sum(0), grads[patch.bias], atol=1e-4 * float(grads[patch.bias].abs().max()))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_prefix_tokens_are_counted_in_the_sequence(name: str) -> None:
    model, a = loaded(name), loaded(name).anatomy
    assert a.position_embedding is not None
    assert a.patch_embedding is not None
    shapes: list[torch.Size] = []
    handle = model.module.get_submodule(a.blocks[0]).register_forward_pre_hook(
        lambda _, args: shapes.append(args[0].shape)
    )
    with torch.no_grad(), model.mode(False):
        model(images(model))
    handle.remove()
    rows, columns = a.patch_embedding.grid
    assert shapes[0][1] == a.position_embedding.prefix_tokens + rows * columns
    state = model.state_dict()
    assert sum(state[t].shape[-2] for t in a.prefix_tokens) == a.position_embedding.prefix_tokens


@pytest.mark.parametrize("name", TRANSFORMERS | SWINS)
def test_the_first_attention_is_the_first_and_its_norm_feeds_it(name: str) -> None:
    """Its weight gradient lies in the span of what the named norm put out (or the block's input, without a norm)."""
    model, attention = loaded(name), loaded(name).anatomy.first_attention
    assert attention is not None
    state = model.state_dict()
    weight = state[attention.weights[0]]
    assert attention.fused
    assert weight.shape[0] == 3 * weight.shape[1]
    assert weight.shape[1] % attention.heads == 0
    assert model.anatomy.blocks[0] == attention.module.rpartition(".")[0]
    source = attention.norm.module if attention.norm else model.anatomy.blocks[0]
    fed: list[Tensor] = []
    module = model.module.get_submodule(source)
    if attention.norm:
        handle = module.register_forward_hook(lambda _m, _a, y: fed.append(y.detach()))
    else:
        handle = module.register_forward_pre_hook(lambda _m, args: fed.append(args[0].detach()))
    grads = gradients(model, images(model))
    handle.remove()
    rows = fed[0].flatten(0, -2).double()  # (tokens, D)
    gradient = grads[attention.weights[0]].double()
    inside = gradient @ torch.linalg.pinv(rows, rtol=1e-5) @ rows
    assert torch.allclose(inside, gradient, atol=1e-3 * float(gradient.abs().max()))


def test_families() -> None:
    families = {name: loaded(name).anatomy.family for name in ALL}
    expected = {name: name.split(" ")[0].split(",")[0] for name in ALL}
    expected |= {n: n.split(" ")[1].strip(",") for n in ALL if n.startswith("torchvision")}
    expected |= dict.fromkeys(UNKNOWN, "unknown") | dict.fromkeys(("april-a", "april-b"), "april-vit")
    expected |= {"lenet-dlg": "lenet", "convnet64?width=8": "convnet"}
    assert families == {n: "resnet" if f.startswith("resnet") else f for n, f in expected.items()}


def test_prefix_tokens_and_tables() -> None:
    facts = {
        "deit distilled": ((2, 2), ("cls_token", "dist_token")),
        "vit, table without class": ((0, 1), ("cls_token",)),
        "vit, registers": ((5, 5), ("cls_token", "reg_token")),
        "vit, registers, bare table": ((0, 5), ("cls_token", "reg_token")),
        "vit": ((1, 1), ("cls_token",)),
        "vit, average pool": ((0, 0), ()),
        "torchvision vit": ((1, 1), ("class_token",)),
        "april-a": ((1, 1), ("cls_token",)),
    }
    for name, (prefix, tokens) in facts.items():
        a = loaded(name).anatomy
        assert a.position_embedding is not None
        assert (a.position_embedding.prefix_in_table, a.position_embedding.prefix_tokens) == prefix, name
        assert a.prefix_tokens == tokens
    for name in SWINS | CONVOLUTIONAL | UNKNOWN | OWN:
        assert loaded(name).anatomy.position_embedding is None


def test_norms_before_attention() -> None:
    norms = {n: loaded(n).anatomy.first_attention for n in TRANSFORMERS | SWINS}
    without = {n for n, attention in norms.items() if attention is not None and attention.norm is None}
    assert without == {"april-a", "swin v2", "torchvision swin v2"}
    after = {n: loaded(n).anatomy.position_embedding for n in TRANSFORMERS}
    assert [n for n, p in after.items() if p is not None and p.norm_after] == ["vit, clip"]


def test_blocks_are_counted() -> None:
    blocks = {n: len(loaded(n).anatomy.blocks) for n in ALL}
    assert all(blocks[n] == 4 for n in SWINS)
    assert all(blocks[n] == (4 if "april" in n else 2) for n in TRANSFORMERS)
    assert [blocks[n] for n in CONVOLUTIONAL] == [8, 8, 8, 12, 12, 8, 5]
    assert all(blocks[n] == 0 for n in UNKNOWN)


def test_norms_mixing_and_stochastic_layers() -> None:
    assert len(loaded("torchvision resnet18").anatomy.mixes_samples) == 20
    assert set(loaded("resnet20").anatomy.norms.values()) == {"BatchNorm2d"}
    for name in TRANSFORMERS | SWINS:
        assert not loaded(name).anatomy.mixes_samples
    stochastic = loaded("vit, layer scale, dropout").anatomy.stochastic
    assert {"pos_drop", "blocks.0.attn", "blocks.1.drop_path1"} <= set(stochastic)
    inside = loaded("torchvision vit, dropout").anatomy.stochastic
    assert {"encoder.dropout", "encoder.layers.encoder_layer_0.self_attention"} <= set(inside)
    assert "features.3.1.stochastic_depth" in loaded("torchvision swin").anatomy.stochastic
    assert not loaded("vit").anatomy.stochastic


@pytest.mark.parametrize("name", ["vit, layer scale, dropout", "torchvision vit, dropout", "swin", "torchvision swin"])
def test_silenced_stochastic_layers_make_train_mode_repeatable(name: str) -> None:
    model = loaded(name)
    x = images(model, 2)
    assert model.anatomy.stochastic
    with torch.no_grad(), torch.random.fork_rng():
        with model.mode(True):
            state = torch.get_rng_state()
            quiet = model(x)
            assert torch.equal(state, torch.get_rng_state())
        with model.mode(False):
            assert torch.allclose(quiet, model(x), atol=1e-5)
        with model.mode(True, stochastic=True):
            model(x)
            assert not torch.equal(state, torch.get_rng_state())


def test_stems_and_fixed_tables_are_not_called_what_they_are_not() -> None:
    assert not any(loaded(n).anatomy.patch_embedding.linear for n in ("swin", "convnext"))  # pyright: ignore
    hybrid = load_model("timm:vit_tiny_r_s16_p8_224", image_size=32, num_classes=3).anatomy
    assert hybrid.patch_embedding is not None
    assert not hybrid.patch_embedding.linear  # a small ResNet stands before it
    fixed = VIT(num_classes=4)
    fixed.pos_embed.requires_grad_(False)
    table = wrap(fixed, (3, 32, 32)).anatomy.position_embedding
    assert table is not None
    assert not table.learnable
    bare = wrap(VIT(num_classes=4, pos_embed="none"), (3, 32, 32)).anatomy
    assert bare.position_embedding is None
    assert any("no absolute position table" in n for n in bare.notes)
    resampled = wrap(VIT(num_classes=4, dynamic_img_size=True), (3, 48, 48)).anatomy
    assert resampled.position_embedding is None
    cropped = wrap(VIT(num_classes=4, img_size=36), (3, 36, 36)).anatomy  # 8 px patches leave a border out
    assert cropped.patch_embedding is not None
    assert not cropped.patch_embedding.linear
    post = wrap(VIT(num_classes=4, block_fn=timm.models.vision_transformer.ResPostBlock), (3, 32, 32)).anatomy
    assert post.first_attention is not None
    assert post.first_attention.norm is None


@pytest.mark.parametrize("name", ALL)
def test_describe_has_readable_rows(name: str) -> None:
    rows = describe(loaded(name))
    labels = [label for label, _ in rows]
    assert labels[:4] == ["model", "family", "input", "classes"]
    assert all(value for _, value in rows)
    assert f"{sum(p.numel() for p in loaded(name).parameters()):,}" in dict(rows)["parameters"]


# --- modules nobody has an adapter for -----------------------------------------------------------------------------


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


def test_pixels_changed_on_the_way_are_noted() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x - 1

    anatomy = look(nn.Sequential(Scaled(), nn.Flatten(), nn.Linear(192, 4)))
    assert any("The pixels are changed before they reach '2'" in n for n in anatomy.notes)


def test_an_adapter_is_entered_once() -> None:
    with pytest.raises(ValueError, match="already an adapter"):
        family("timm.models.resnet.ResNet")(lambda subject: subject.found)
