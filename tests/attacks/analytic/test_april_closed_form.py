"""APRIL's closed form on its Architecture A, and nowhere else."""

import pytest
import torch
from small_vits import NOBODY, run, seen

import leakscope as ls


def target(name, names=("cat",)):
    model = ls.load_model(f"leakscope:{name}", seed=0).to(dtype=torch.float64)
    channels, size, _ = model.input.shape
    private = ls.bundled_batch(list(names), size=size, channels=channels)
    return model, ls.Batch(images=private.images.double(), labels=private.labels)


def error(result, private):
    return float((result.images - private.images).square().mean())


@pytest.mark.parametrize("name", ["april-a-28", "april-a", "april-a-224"])
def test_exact_on_architecture_a(name):
    model, private = target(name)
    result = run("april-closed-form", seen(model, private))
    assert error(result, private) <= 1e-8
    assert torch.equal(result.labels, private.labels)
    assert result.evidence["rank"] == result.evidence["tokens"]
    assert result.energy < 1e-6


@pytest.mark.parametrize("factor", [-0.01, 1e4])
def test_any_scale(factor):
    model, private = target("april-a")
    scaled = seen(model, private, signal=lambda s: {k: factor * v for k, v in s.items()})
    assert error(run("april-closed-form", scaled), private) <= 1e-8


def test_architecture_b_is_refused():
    model, private = target("april-b")
    with pytest.raises(ls.NotApplicable, match="Architecture A"):
        run("april-closed-form", seen(model, private))


def test_a_residual_is_noticed():
    """No norm, but a residual around the attention: nothing in the anatomy shows it, the self-check does."""
    model, private = target("april-a")

    class Residual(torch.nn.Module):
        def __init__(self, block):
            super().__init__()
            self.attention, self.norm, self.mlp = block.attention, block.norm, block.mlp

        def forward(self, x):
            return self.mlp(self.norm(x + self.attention(x)))

    model.module.blocks[0] = Residual(model.module.blocks[0])
    with pytest.raises(ls.NotApplicable, match="class token"):
        run("april-closed-form", seen(model, private))


def test_batches_are_refused():
    model, private = target("april-a", ("cat", "coffee"))
    with pytest.raises(ls.NotApplicable, match="2 images"):
        run("april-closed-form", seen(model, private))
    with pytest.raises(ls.NotApplicable, match="class token"):
        run("april-closed-form", seen(model, private, threat=NOBODY))


def test_missing_gradients():
    model, private = target("april-a")
    for part in ("pos_embed", "blocks.0.attention.qkv.weight"):
        with pytest.raises(ls.NotApplicable, match="not in the signal"):
            run(
                "april-closed-form",
                seen(model, private, signal=lambda s, p=part: {k: v for k, v in s.items() if k != p}),
            )


def test_a_patch_embedding_that_cannot_be_undone():
    model, private = target("april-a")
    model.module.patch_embed.weight.data[:, :, 0, 0] = 0
    with pytest.raises(ls.NotApplicable, match="cannot be undone"):
        run("april-closed-form", seen(model, private))
