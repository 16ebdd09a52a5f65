"""Deep Leakage from Gradients on the sigmoid LeNet (Zhu et al. 2019)."""

import pytest
import torch

import leakscope as ls

pytestmark = [pytest.mark.papers, pytest.mark.timeout(0)]


def test_most_images_come_back_exactly(cifar):
    """MSE ≤ 1e-4 on at least 8 of 10, 300 L-BFGS steps, two restarts, chosen by the attack's loss alone."""
    model = ls.load_model("leakscope:lenet-dlg", num_classes=10, seed=0)
    attack = ls.attack("dlg", steps=300, population=2, workers=2)
    errors = []
    for image, label in zip(cifar.images, cifar.labels, strict=True):
        batch = ls.Batch(images=image[None], labels=label[None])
        seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(0))
        rec = attack(seen, generator=torch.Generator().manual_seed(1))
        errors.append(float(ls.score(rec, batch, ["mse"])["mse"]))
        print(
            f"label {int(label)}: mse {errors[-1]:.2e}, loss {rec.energy:.2e}, restart {rec.evidence['restart']} of "
            f"{[f'{e:.1e}' for e in rec.evidence['energies']]}, {rec.seconds:.0f} s"
        )
    assert sum(error <= 1e-4 for error in errors) >= 8
