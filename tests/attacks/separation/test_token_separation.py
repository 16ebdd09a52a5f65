"""Batches come apart exactly where the conditions hold, and are refused with the reason where they do not."""

import pytest
import torch
from batches import photographs, psnrs, seen, separate, vit

import leakscope as ls

LAYOUTS = {
    "class token": {},
    "registers outside the table": {"reg_tokens": 2, "no_embed_class": True, "width": 128},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "mean over patches": {"global_pool": "avg"},
    "no bias in qkv": {"qkv_bias": False},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_images_come_apart_exactly(layout):
    model, batch = vit(**LAYOUTS[layout]), photographs(2)
    result = separate(seen(model, batch))
    assert min(psnrs(result, batch)) > 100
    assert sorted(result.labels.tolist()) == sorted(batch.labels.tolist())
    assert result.energy < 1e-6
    assert result.evidence["rank"] == 32


def test_three_images_come_apart_exactly():
    model, batch = vit(width=128), photographs(3)
    result = separate(seen(model, batch))
    assert min(psnrs(result, batch)) > 100
    assert sorted(result.labels.tolist()) == sorted(batch.labels.tolist())


def test_single_precision_and_a_hidden_batch_size():
    model = ls.load_model("leakscope:april-b", num_classes=10, image_size=32, seed=0)
    batch = photographs(2)
    result = separate(seen(model, batch, threat=ls.ThreatModel(name="nothing")))
    assert min(psnrs(result, batch)) > 50
    assert result.evidence["misfit"] < 3


def test_equal_labels_and_known_order():
    model, batch = vit(), photographs(2)
    same = ls.Batch(images=batch.images, labels=torch.tensor([7, 7]))
    assert separate(seen(model, same)).labels.tolist() == [7, 7]
    for labels in ([3, 1], [1, 3]):
        ordered = ls.Batch(images=batch.images, labels=torch.tensor(labels))
        result = separate(seen(model, ordered, threat=ls.threats.WITH_LABELS))
        assert result.labels.tolist() == labels
        assert float((result.images - batch.images.double()).abs().max()) < 1e-3


def without(name):
    return lambda signal: {n: g for n, g in signal.items() if n != name}


def rounded(signal):
    return {n: g.half().to(g.dtype) for n, g in signal.items()}


def noisy(signal):
    draw = torch.Generator().manual_seed(0)
    return {n: g + 1e-3 * g.std() * torch.randn(g.shape, generator=draw, dtype=g.dtype) for n, g in signal.items()}


@pytest.mark.parametrize(
    ("signal", "reason"),
    [
        (without("pos_embed"), "position embedding"),
        (without("patch_embed.proj.weight"), "patch embedding"),
        (without("blocks.0.mlp.fc2.weight"), "blocks.0.mlp.fc2.weight"),
        (without("head.weight"), "classifier"),
        (rounded, "rank"),
        (noisy, "rank"),
    ],
)
def test_missing_or_coarse_gradients_are_refused(signal, reason):
    with pytest.raises(ls.NotApplicable, match=reason):
        separate(seen(vit(), photographs(2), signal=signal))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"width": 64}, "twice the tokens are fewer than the width"),
        ({"init_values": 0.1}, "ls1.gamma"),
        ({"qk_norm": True}, "nothing else"),
        ({"pre_norm": True}, "norm_pre"),
    ],
)
def test_other_architectures_are_refused(options, reason):
    with pytest.raises(ls.NotApplicable, match=reason):
        separate(seen(vit(**options), photographs(2)))


@pytest.mark.parametrize("name", ["leakscope:april-a", "leakscope:lenet-dlg"])
def test_other_models_are_refused(name):
    model = ls.load_model(name, num_classes=10, image_size=32, seed=0)
    with pytest.raises(ls.NotApplicable):
        separate(seen(model, photographs(2)))


def test_a_gradient_of_something_else_is_refused():
    """Block 0's gradients of other images do not fit the patches: nothing is presented as a reconstruction."""
    model = vit()
    other = seen(model, ls.bundled_batch(["temple", "raccoon"], size=32)).signal
    with pytest.raises(ls.NotApplicable, match="unexplained"):
        separate(seen(model, photographs(2), signal=lambda s: s | {n: other[n] for n in s if n.startswith("blocks.0")}))


def test_twins_are_refused():
    """Two equal images have the rank of one."""
    model, batch = vit(), photographs(1)
    twins = ls.Batch(images=batch.images.repeat(2, 1, 1, 1), labels=torch.tensor([1, 2]))
    with pytest.raises(ls.NotApplicable, match="rank"):
        separate(seen(model, twins))
