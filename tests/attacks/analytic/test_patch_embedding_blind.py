"""The second closed form: no position gradient."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_vits import NOBODY, batch, psnr, run, seen, small_vit, wrap

import leakscope as ls

LAYOUTS = {
    "class token": {},
    "registers": {"reg_tokens": 3},
    "registers outside the table": {"reg_tokens": 3, "no_embed_class": True},
    "no class token, mean": {"class_token": False, "global_pool": "avg"},
}


def without_table(signal):
    return {name: value for name, value in signal.items() if "pos_embed" not in name}


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    patch=st.sampled_from([4, 8]),
    width=st.sampled_from([64, 96]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 1000),
)
def test_every_layout_without_the_tables_gradient(rows, columns, patch, width, layout, seed):
    model = small_vit(size=(rows * patch, columns * patch), patch=patch, width=width, seed=seed, **LAYOUTS[layout])
    private = batch(model, seed=seed)
    result = run("patch-embedding-blind", seen(model, private, signal=without_table))
    assert psnr(result, private) > 100
    assert result.energy < 1e-6


def test_a_frozen_random_table():
    model = small_vit()
    model.module.pos_embed.requires_grad_(False)
    model = wrap(model.module, model.input.shape, 10)
    private = batch(model)
    observation = seen(model, private)
    assert "pos_embed" not in observation.signal
    assert psnr(run("patch-embedding-blind", observation), private) > 100


def test_float32_at_a_real_width():
    model = ls.load_model("timm:vit_tiny_patch16_224", num_classes=10, image_size=96)
    private = ls.bundled_batch(["cat"], size=96)
    result = run("patch-embedding-blind", seen(model, private, signal=without_table))
    assert psnr(result, private) > 45
    assert torch.equal(result.labels, private.labels)


def sine_cosine(grid, width):
    """The usual fixed table: half of the width for the row, half for the column."""
    quarter = torch.exp(-math.log(10000) * torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    waves = torch.arange(grid, dtype=torch.float64)[:, None] * quarter
    axis = torch.cat([waves.sin(), waves.cos()], dim=1)
    return torch.cat([axis.repeat_interleave(grid, 0), axis.repeat(grid, 1)], dim=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_fixed_two_dimensional_table_resists(dtype):
    model = small_vit(size=(32, 32), patch=4, width=192, dtype=dtype)
    model.module.pos_embed.data[0, 1:] = sine_cosine(8, 192).to(dtype)
    model.module.pos_embed.requires_grad_(False)
    model = wrap(model.module, model.input.shape, 10)
    # 64 patches of 48 numbers: the row space of the patches must not be everything.
    with pytest.raises(ls.NotApplicable):
        run("patch-embedding-blind", seen(model, batch(model)))
    model = small_vit(size=(64, 64), patch=8, width=192, dtype=dtype)
    model.module.pos_embed.data[0, 1:] = sine_cosine(8, 192).to(dtype)
    private = batch(model)
    assert psnr(run("patch-embedding", seen(model, private)), private) > 60  # with its gradient shared, it does not
    with pytest.raises(ls.NotApplicable, match=r"apart|pixel range"):
        run("patch-embedding-blind", seen(model, private, signal=without_table))


def test_refusals():
    model = small_vit(size=(48, 48), width=64)  # 36 patches, 37 tokens: 27 equations for 36 unknowns
    with pytest.raises(ls.NotApplicable, match="27 equations for the 36 unknowns"):
        run("patch-embedding-blind", seen(model, batch(model)))
    model = small_vit(pre_norm=True)
    with pytest.raises(ls.NotApplicable, match="norm_pre"):
        run("patch-embedding-blind", seen(model, batch(model)))
    model = small_vit()
    with pytest.raises(ls.NotApplicable, match=r"first attention.*not in the signal"):
        run(
            "patch-embedding-blind",
            seen(model, batch(model), signal=lambda s: {k: v for k, v in s.items() if "qkv" not in k}),
        )
    lenet = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=16)
    observation = seen(lenet, ls.bundled_batch(["cat"], size=16))
    with pytest.raises(ls.NotApplicable, match="no patch embedding"):
        run("patch-embedding-blind", observation)


@pytest.mark.parametrize("count", [2, 3])
def test_a_batch_is_refused(count):
    model = small_vit(width=96)
    private = batch(model, count)
    with pytest.raises(ls.NotApplicable, match=f"{count} images"):
        run("patch-embedding-blind", seen(model, private))
    with pytest.raises(ls.NotApplicable, match="does not have the rank of one image"):
        run("patch-embedding-blind", seen(model, private, threat=NOBODY))


def test_noise_is_refused_rather_than_shown():
    model = small_vit(width=96)
    g = torch.Generator().manual_seed(0)

    def noisy(signal):
        return {k: v + 0.01 * v.std() * torch.randn(v.shape, generator=g) for k, v in signal.items()}

    with pytest.raises(ls.NotApplicable):
        run("patch-embedding-blind", seen(model, batch(model), signal=noisy))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shades", [1, 3], ids=["one white", "several greys"])
def test_flat_regions(dtype, shades):
    """Equal patches lower the rank of the patches' row space; each position still has equations of its own."""
    model = small_vit(width=96, dtype=dtype)
    private = batch(model)
    for row in range(shades):  # 8 x 8 patches: row by row one flat shade each
        private.images[:, :, 8 * row : 8 * row + 8] = (1.0, 0.75, 0.25)[row]
    result = run("patch-embedding-blind", seen(model, private, signal=without_table))
    assert psnr(result, private) > (100 if dtype == torch.float64 else 60)
    assert result.evidence["patches"] == 16
    assert result.evidence["rank"] == (13 if shades == 1 else 5)
    assert result.energy < (1e-6 if dtype == torch.float64 else 0.02)


def test_a_white_border_in_a_photograph():
    model = small_vit(size=(64, 64), width=192)
    photograph = ls.bundled_batch(["cat"], size=64)
    private = ls.Batch(images=photograph.images.double(), labels=photograph.labels)
    private.images[:, :, :, :8] = private.images[:, :, :, 56:] = 1.0
    result = run("patch-embedding-blind", seen(model, private, signal=without_table))
    assert psnr(result, private) > 100
    assert result.evidence["rank"] == 49  # 48 patches and one white
