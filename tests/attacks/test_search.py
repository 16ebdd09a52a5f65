"""Searching by frequency: what it gains, and that a tuned attack tries it."""

import pytest
import torch

import leakscope as ls
from leakscope.attacks.configure import configured


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def case():
    batch = ls.bundled_batch(["astronaut", "coffee"], size=32)
    model = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=32, seed=0)
    return batch, ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded())


def test_coarse_features_come_first(case):
    """After a few steps, a picture by frequency is nearer to the truth than one by pixels, and smoother."""
    batch, seen = case
    found = {
        search: configured("inverting-gradients", {"steps": 100, "search": search})(seen, generator=seeded(1)).images
        for search in ("pixels", "frequency")
    }
    error = {search: (images - batch.images).square().mean((1, 2, 3)) for search, images in found.items()}
    assert (error["frequency"] < 0.7 * error["pixels"]).all()
    rough = {search: float((x[..., 1:] - x[..., :-1]).abs().mean()) for search, x in found.items()}
    assert rough["frequency"] < 0.5 * rough["pixels"]


def test_a_tuned_attack_tries_both_and_says_which_it_took(case):
    _, seen = case
    found = ls.attack("tuned", steps=40, trials=2)(seen, generator=seeded(1))
    trials = found.evidence["trials"]
    assert [trial[3] for trial in trials] == ["pixels", "frequency"]
    assert found.evidence["search"] == min(trials)[3]
