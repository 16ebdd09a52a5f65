"""What the adapters say about each family and its variants."""

import pytest
import torch
from small_models import ALL, CONVOLUTIONAL, OWN, SWINS, TRANSFORMERS, UNKNOWN, VIT, images, loaded, timm, tv, wrap

from leakscope.models import load_model
from leakscope.models.families import family


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
    assert [blocks[n] for n in CONVOLUTIONAL] == [8, 8, 8, 12, 12, 16, 8, 5]
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


def test_rare_transformer_variants_are_noted() -> None:
    dropped = wrap(VIT(num_classes=4, patch_drop_rate=0.25), (3, 32, 32)).anatomy
    assert "patch_drop" in dropped.stochastic
    assert any("drops patches" in n for n in dropped.notes)
    block = timm.models.vision_transformer.ParallelScalingBlock
    parallel = wrap(VIT(num_classes=4, block_fn=block), (3, 32, 32)).anatomy
    assert parallel.first_attention is None
    assert any("first block" in n for n in parallel.notes)
    stem = [tv.vision_transformer.ConvStemConfig(16, 3, 2), tv.vision_transformer.ConvStemConfig(16, 3, 4)]
    stemmed = tv.VisionTransformer(32, 8, 2, 3, 48, 96, num_classes=4, conv_stem_configs=stem)
    assert wrap(stemmed, (3, 32, 32)).anatomy.patch_embedding is None
    assert "april" not in repr(wrap(stemmed, (3, 32, 32)))


def test_an_adapter_is_entered_once() -> None:
    with pytest.raises(ValueError, match="already an adapter"):
        family("timm.models.resnet.ResNet")(lambda subject: subject.found)
