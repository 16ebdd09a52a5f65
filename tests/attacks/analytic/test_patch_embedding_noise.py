"""Truncation chosen without the truth, against the best one chosen with it; and the shipped sizes."""

from functools import cache

import pytest
import torch
from small_vits import psnr, run, seen

import leakscope as ls
from leakscope.functional.patches import from_patches


@cache
def tiny():
    """ViT-Ti/16 at 96 px: 36 patches, 192 wide."""
    model = ls.load_model("timm:vit_tiny_patch16_224", num_classes=10, image_size=96)
    private = ls.bundled_batch(["coffee"], size=96)
    return model, private, seen(model, private)


def corrupt(kind):
    def change(signal):
        if isinstance(kind, torch.dtype):
            return {k: v.to(kind).float() for k, v in signal.items()}
        g = torch.Generator().manual_seed(3)
        return {k: v + kind * v.square().mean().sqrt() * torch.randn(v.shape, generator=g) for k, v in signal.items()}

    return change


def oracle(signal, model, private):
    """PSNR of the best truncated solve, chosen with the truth."""
    delta = signal["pos_embed"][0, 1:].double()
    u, s, v = torch.linalg.svd(delta.T, full_matrices=False)
    seen_from_u = u.T @ signal["patch_embed.proj.weight"].double().flatten(1)
    best = 0.0
    for k in range(1, len(s) + 1):
        patches = v[:k].T @ (seen_from_u[:k] / s[:k, None])
        pixels = from_patches(patches, model.input.shape, (16, 16)) * model.std.double() + model.mean.double()
        error = (pixels.clamp(0, 1) - private.images[0].double()).square().mean()
        best = max(best, float(-10 * torch.log10(error)))
    return best


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, 1e-4, 1e-3, 1e-2], ids=str)
def test_as_good_as_the_best_truncation(kind):
    model, private, _ = tiny()
    noisy = seen(model, private, signal=corrupt(kind))
    result = run("patch-embedding", noisy)
    margin = 1.5 if kind == 1e-2 else 1.0
    assert psnr(result, private) > oracle(noisy.signal, model, private) - margin
    assert result.evidence["noise"] > 1e-5
    clean = run("patch-embedding", tiny()[2])
    assert clean.evidence["noise"] < 1e-5


def test_more_patches_than_the_width():
    model = ls.load_model("timm:vit_tiny_patch16_224", num_classes=1000)
    private = ls.bundled_batch(["cat"], size=224)
    result = run("patch-embedding", seen(model, private))
    assert psnr(result, private) >= 35
    assert result.evidence["rank"] == 191
    for kind in (torch.float16, torch.bfloat16):
        noisy = seen(model, private, signal=corrupt(kind))
        assert psnr(run("patch-embedding", noisy), private) > oracle(noisy.signal, model, private) - 1.0


def test_noise_without_end_is_refused():
    model, private, _ = tiny()
    with pytest.raises(ls.NotApplicable):
        run("patch-embedding", seen(model, private, signal=corrupt(10.0)))


def test_a_trained_transformer_leaks_no_less():
    """Some hundred real steps on pictures, then the gradient of each; the median stays far above 80 dB."""
    from small_vits import picture, small_vit

    model = small_vit(size=(32, 32), width=96, depth=3, dtype=torch.float32)
    images = picture((3, 32, 32), 40, seed=5).float()
    labels = torch.arange(40) % 10
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(200):
        rows = torch.arange(step * 8, step * 8 + 8) % 40
        loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    model.module.zero_grad(set_to_none=True)
    assert losses[-1] < 0.5 * losses[0]
    found = []
    for index in range(5):
        private = ls.Batch(images=picture((3, 32, 32), 1, seed=50 + index).float(), labels=torch.tensor([index]))
        found.append(psnr(run("patch-embedding", seen(model, private)), private))
    assert sorted(found)[2] >= 80


@pytest.mark.parametrize("count", [2, 4])
def test_batches_on_a_real_width(count):
    model, _, _ = tiny()
    private = ls.bundled_batch(["cat", "coffee", "astronaut", "temple"][:count], size=96)
    nobody = ls.ThreatModel(name="knows nothing")
    with pytest.raises(ls.NotApplicable, match="single image do not hold"):
        run("patch-embedding", seen(model, private, threat=nobody))
