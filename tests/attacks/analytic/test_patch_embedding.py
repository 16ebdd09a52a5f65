"""Δᵀ X = G: exact wherever its conditions hold, refused with the reason wherever they do not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vits import NOBODY, batch, psnr, run, seen, small_vit, wrap
from torch import nn

import leakscope as ls
from leakscope.functional.linalg import spectrum
from leakscope.functional.patches import from_patches

LAYOUTS = {
    "class token": {},
    "registers": {"reg_tokens": 3},
    "registers outside the table": {"reg_tokens": 3, "no_embed_class": True},
    "no class token, mean": {"class_token": False, "global_pool": "avg"},
    "class token outside the table": {"no_embed_class": True},
    "mean over patches": {"global_pool": "avg"},
    "norm before the blocks": {"pre_norm": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_token_layout(layout):
    model = small_vit(**LAYOUTS[layout])
    private = batch(model)
    result = run("patch-embedding", seen(model, private))
    assert psnr(result, private) > 150
    assert torch.equal(result.labels, private.labels)
    assert result.evidence["rank"] == result.evidence["patches"] == 16
    assert result.energy < 1e-10


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    patch=st.sampled_from([2, 3, 8, (4, 8)]),
    width=st.sampled_from([32, 48, 96]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 1000),
)
def test_any_size_is_exact(rows, columns, patch, width, layout, channels, seed):
    height, across = (patch, patch) if isinstance(patch, int) else patch
    size = (rows * height, columns * across)
    model = small_vit(size=size, patch=patch, width=width, channels=channels, seed=seed, **LAYOUTS[layout])
    private = batch(model, seed=seed)
    result = run("patch-embedding", seen(model, private))
    assert psnr(result, private) > 120
    assert result.images.shape == private.images.shape


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(2, 5),
    patch=st.sampled_from([4, 8]),
    width=st.sampled_from([16, 32, 96]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    count=st.integers(2, 4),
    seed=st.integers(0, 1000),
)
def test_a_batch_is_never_a_picture(rows, columns, patch, width, layout, count, seed):
    """Also for a server that was not told the batch size: the equations themselves must show it."""
    model = small_vit(size=(rows * patch, columns * patch), patch=patch, width=width, seed=seed, **LAYOUTS[layout])
    private = batch(model, count, seed=seed)
    with pytest.raises(ls.NotApplicable, match=f"{count} images"):
        run("patch-embedding", seen(model, private))
    with pytest.raises(ls.NotApplicable):
        run("patch-embedding", seen(model, private, threat=NOBODY))


def test_one_image_without_knowing_the_batch_size():
    model = small_vit()
    private = batch(model)
    result = run("patch-embedding", seen(model, private, threat=NOBODY))
    assert psnr(result, private) > 150
    assert torch.equal(result.labels, private.labels)


def test_fewer_equations_than_patches():
    """P = 36 > D − 1 = 31: what is missing is left out, and said."""
    model = small_vit(size=(48, 48), width=32)
    private = batch(model)
    result = run("patch-embedding", seen(model, private))
    assert 15 < psnr(result, private) < 100
    assert result.evidence["rank"] == 31
    assert "5 of 36 directions" in result.outcome.message


def test_far_fewer_equations_than_patches_are_refused():
    model = small_vit(size=(64, 64), width=24)
    with pytest.raises(ls.NotApplicable, match="rank 23 for 64 patches"):
        run("patch-embedding", seen(model, batch(model)))


@pytest.mark.parametrize("factor", [-0.01, 1e-6, 1e6])
def test_a_weight_delta_of_one_sgd_step(factor):
    model = small_vit()
    private = batch(model)
    delta = seen(model, private, signal=lambda s: {k: factor * v for k, v in s.items()})
    result = run("patch-embedding", delta)
    assert psnr(result, private) > 150
    assert torch.equal(result.labels, private.labels)


def local_steps(model, private, *, steps=5, rate=0.05, momentum=0.0, decay=0.0):
    """θ_K − θ_0 of K SGD steps of torch's own optimiser on the same image."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=decay)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(private.images), private.labels).backward()
        optimiser.step()
    delta = {name: model.state_dict()[name] - value for name, value in start.items()}
    model.load_state_dict(start)
    model.module.zero_grad(set_to_none=True)
    return delta


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_several_sgd_steps_on_one_image_are_exact(momentum):
    """Σ_k Δ_kᵀ X = (Σ_k Δ_k)ᵀ X: the image is the same in every step, whatever the weights are."""
    model = small_vit()
    private = batch(model)
    delta = seen(model, private, signal=lambda _: local_steps(model, private, momentum=momentum))
    assert psnr(run("patch-embedding", delta), private) > 150


def test_rounded_weights_add_noise():
    model = small_vit(width=96, dtype=torch.float32)
    private = batch(model)
    delta = seen(model, private, signal=lambda _: local_steps(model, private))
    result = run("patch-embedding", delta)
    assert 35 < psnr(result, private) < 100
    assert result.evidence["residual"] > 1e-7


def test_weight_decay_is_approximate_and_said():
    model = small_vit(width=96)
    private = batch(model)
    delta = seen(model, private, signal=lambda _: local_steps(model, private, decay=1e-5))
    result = run("patch-embedding", delta)
    assert 15 < psnr(result, private) < 100
    assert "approximately" in result.outcome.message


def test_steps_on_other_images_are_refused():
    model = small_vit(width=96)
    first, second = batch(model), batch(model, seed=3)

    def both(_):
        one, two = local_steps(model, first, steps=1), local_steps(model, second, steps=1)
        return {name: one[name] + two[name] for name in one}

    with pytest.raises(ls.NotApplicable, match="single image do not hold"):
        run("patch-embedding", seen(model, first, signal=both))


def test_an_adaptive_step_is_refused():
    """AdamW's first step is about sign(g): nothing linear survives."""
    model = small_vit()
    with pytest.raises(ls.NotApplicable, match="do not belong together"):
        run("patch-embedding", seen(model, batch(model), signal=lambda s: {k: v.sign() for k, v in s.items()}))


def test_pruning_is_refused():
    def top_half(signal):
        return {k: v * (v.abs() >= v.abs().median()) for k, v in signal.items()}

    model = small_vit()
    with pytest.raises(ls.NotApplicable):
        run("patch-embedding", seen(model, batch(model), signal=top_half))


def test_another_images_position_gradient():
    """The control: with Δ of another image the solve gives noise (< 10 dB), and the attack refuses."""
    model = small_vit(size=(64, 64), width=96)
    private, other = batch(model), batch(model, seed=7)
    mine, theirs = seen(model, private).signal, seen(model, other).signal
    found = spectrum(theirs["pos_embed"][0, 1:].T, mine["patch_embed.proj.weight"].flatten(1))
    pixels = from_patches(found.solve(torch.ones(1, 1)), model.input.shape, (8, 8)) * model.std + model.mean
    assert -10 * torch.log10((pixels.clamp(0, 1) - private.images[0]).square().mean()) < 10
    with pytest.raises(ls.NotApplicable, match="do not belong together"):
        run("patch-embedding", seen(model, private, signal=lambda s: s | {"pos_embed": theirs["pos_embed"]}))


@pytest.mark.parametrize(("name", "what"), [("pos_embed", "position embedding"), ("patch_embed.proj.weight", "patch")])
def test_missing_gradients(name, what):
    model = small_vit()

    def without(signal):
        return {k: v for k, v in signal.items() if k != name}

    with pytest.raises(ls.NotApplicable, match=f"{what}.*not in the signal"):
        run("patch-embedding", seen(model, batch(model), signal=without))


def test_without_a_bias_the_residual_still_checks():
    model = small_vit()
    private = batch(model, 2)

    def without(signal):
        return {k: v for k, v in signal.items() if k != "patch_embed.proj.bias"}

    with pytest.raises(ls.NotApplicable, match="single image do not hold"):
        run("patch-embedding", seen(model, private, threat=NOBODY, signal=without))
    one = batch(model)
    result = run("patch-embedding", seen(model, one, signal=without))
    assert psnr(result, one) > 150
    assert "self-check" not in result.evidence


def test_a_head_that_starts_at_zero():
    model = small_vit()
    nn.init.zeros_(model.module.head.weight)
    with pytest.raises(ls.NotApplicable, match="zero everywhere"):
        run("patch-embedding", seen(model, batch(model)))


def test_broken_numbers():
    model = small_vit()
    with pytest.raises(ls.NotApplicable, match="NaN"):
        run(
            "patch-embedding", seen(model, batch(model), signal=lambda s: s | {"pos_embed": s["pos_embed"] * torch.nan})
        )


def test_a_frozen_table_points_to_the_blind_variant():
    model = small_vit()
    model.module.pos_embed.requires_grad_(False)
    model = wrap(model.module, model.input.shape, 10)
    with pytest.raises(ls.NotApplicable, match="patch-embedding-blind"):
        run("patch-embedding", seen(model, batch(model)))


@pytest.mark.parametrize("name", ["leakscope:lenet-dlg", "timm:convnext_atto", "timm:swin_tiny_patch4_window7_224"])
def test_models_without_such_an_embedding(name):
    size = 32 if "swin" not in name else 224
    model = ls.load_model(name, num_classes=10, image_size=size)
    private = ls.bundled_batch(["cat"], size=size)
    # Anatomy decides before any gradient is looked at.
    with pytest.raises(ls.NotApplicable, match=r"patch embedding|position table"):
        run("patch-embedding", seen(model, private, protocol=_Nothing()))


class _Nothing:
    """A client that shares one number; refusals by anatomy need no more."""

    def replay(self, model, images, labels, *, create_graph=False, generator=None):
        return {"nothing": torch.zeros(1)}


def test_a_norm_after_the_patch_embedding_is_refused():
    model = small_vit()
    model.module.patch_embed.norm = nn.LayerNorm(64).double()
    model = wrap(model.module, model.input.shape, 10)
    with pytest.raises(ls.NotApplicable, match="not linear"):
        run("patch-embedding", seen(model, batch(model)))


def test_torchvision():
    from torchvision.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = VisionTransformer(
            image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10
        )
        nn.init.normal_(module.heads.head.weight, std=0.02)  # it starts at zero
    model = wrap(module.double().eval(), (3, 32, 32), 10)
    private = batch(model)
    assert psnr(run("patch-embedding", seen(model, private)), private) > 150


def test_distilled_tokens():
    model = ls.load_model("timm:deit_tiny_distilled_patch16_224", num_classes=10, image_size=64)
    private = ls.bundled_batch(["coffee"], size=64)
    result = run("patch-embedding", seen(model, private))
    assert psnr(result, private) > 70
    assert torch.equal(result.labels, private.labels)


def test_dropout_and_train_mode_change_nothing():
    model = small_vit(proj_drop_rate=0.3, pos_drop_rate=0.2)
    private = batch(model)
    client = ls.FedSGD(mode="train", stochastic=True)
    assert psnr(run("patch-embedding", seen(model, private, protocol=client)), private) > 100
