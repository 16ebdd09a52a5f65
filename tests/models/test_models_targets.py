"""The targets of GradViT and APRIL load by name, and what the attacks need of them is found."""

import pytest

import leakscope as ls

SMALL = {
    "timm:vit_tiny_patch16_224": ("vit", 16, 1),
    "timm:vit_small_patch32_224": ("vit", 32, 1),
    "timm:deit_tiny_patch16_224": ("deit", 16, 1),
    "timm:deit_tiny_distilled_patch16_224": ("deit", 16, 2),
}
NAMES = [
    *(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base")),
    *(f"vit_{size}_patch32_224" for size in ("small", "base")),  # no ViT-T/32 was ever trained, so timm has none
    *(f"deit_{size}{kind}_patch16_224" for size in ("tiny", "small", "base") for kind in ("", "_distilled")),
]


@pytest.mark.parametrize("name", SMALL)
def test_small_transformers_have_an_anatomy(name):
    family, patch, tokens = SMALL[name]
    model = ls.load_model(name, num_classes=10, image_size=64, seed=0)
    anatomy = model.anatomy
    assert anatomy.family == family
    assert anatomy.patch_embedding.patch == (patch, patch)
    assert anatomy.position_embedding.learnable
    assert anatomy.position_embedding.prefix_in_table == tokens
    assert len(anatomy.prefix_tokens) == tokens
    assert anatomy.first_attention.fused
    assert len(anatomy.blocks) == 12
    assert anatomy.classifier is not None


def test_timm_knows_every_size():
    timm = pytest.importorskip("timm")
    assert [name for name in NAMES if not timm.is_model(name)] == []


def test_the_face_transformer():
    model = ls.load_model("leakscope:face-vit?dim=64&depth=2&heads=4", num_classes=7, seed=0)
    assert model.input.shape == (3, 112, 112)
    assert model.anatomy.patch_embedding.patch == (8, 8)
    assert model.anatomy.patch_embedding.grid == (14, 14)
    assert model.anatomy.position_embedding.learnable
    assert model.anatomy.first_attention.heads == 4
    block = dict(model.named_parameters())["blocks.0.mlp.fc1.weight"]
    assert tuple(block.shape) == (256, 64)
    with pytest.raises(ls.BadInput, match="multiple of 8"):
        ls.load_model("leakscope:face-vit", image_size=100)
