"""DP-SGD against Opacus: the update without noise, the noise's size, and ε."""

import math

import pytest
import torch
from defended import flat, mlp, private, sent, setting

import leakscope as ls
from leakscope.client import defence
from leakscope.client.defences.dp_sgd import PerSampleClipping


def opacus_update(clip):
    opacus = pytest.importorskip("opacus", reason="opacus comes with leakscope[fl]")
    import copy

    from opacus.optimizers import DPOptimizer

    model, batch = mlp(), private(4)
    wrapped = opacus.GradSampleModule(copy.deepcopy(model.module).train())
    optimiser = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=4,
    )
    loss = torch.nn.functional.cross_entropy(wrapped(model.normalise(batch.images)), batch.labels)
    loss.backward()
    optimiser.pre_step()
    return {name: p.grad for name, p in wrapped._module.named_parameters()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("clip", [0.05, 1.0, 100.0])
def test_the_update_is_opacus_own(clip):
    theirs = opacus_update(clip)
    ours = sent(defence("dp-sgd", clip=clip, noise_multiplier=0.0), start=setting(batch=private(4)))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-7), name
    unclipped = sent(start=setting(batch=private(4)))
    assert torch.allclose(flat(ours), flat(unclipped), rtol=1e-4, atol=1e-6) is (clip == 100.0)


def test_the_noise_has_the_size_opacus_gives_it():
    """Opacus adds N(0, (σ·C)²) to the sum, and divides by the batch size."""
    start = setting(batch=private(4))
    clean = sent(defence("dp-sgd", clip=0.5, noise_multiplier=0.0), start=start)
    noisy = sent(defence("dp-sgd", clip=0.5, noise_multiplier=2.0), start=start)
    noise = flat(noisy) - flat(clean)
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.05)
    summed = setting(batch=private(4), protocol=ls.FedSGD(reduction="sum"))
    noise = flat(sent(defence("dp-sgd", clip=0.5, noise_multiplier=2.0), start=summed))
    noise = noise - flat(sent(defence("dp-sgd", clip=0.5, noise_multiplier=0.0), start=summed))
    assert float(noise.std()) == pytest.approx(2.0 * 0.5, rel=0.05)


@pytest.mark.filterwarnings("ignore")
def test_epsilon_is_opacus_own():
    accountants = pytest.importorskip("opacus.accountants", reason="opacus comes with leakscope[fl]")
    accountant = accountants.RDPAccountant()
    for _ in range(50):
        accountant.step(noise_multiplier=1.1, sample_rate=0.05)
    made = defence("dp-sgd", noise_multiplier=1.1)
    ours = made.epsilon(sample_rate=0.05, steps=50, delta=1e-5)
    assert ours == pytest.approx(accountant.get_epsilon(delta=1e-5), rel=1e-9)
    assert made.epsilon(sample_rate=0.05, steps=100) > ours
    assert math.isinf(defence("dp-sgd", noise_multiplier=0.0).epsilon(sample_rate=0.05, steps=50))


def test_refusals():
    model = ls.load_model("leakscope:resnet20", num_classes=10, image_size=16, seed=0)
    start = setting(model, private(size=16), protocol=ls.FedSGD(mode="train"))
    with pytest.raises(ls.BadInput, match="BatchNorm"):
        sent(defence("dp-sgd"), start=start)
    with pytest.raises(ls.BadInput, match="FedAvg"):
        sent(defence("dp-sgd"), start=setting(protocol=ls.client.FedAvg(steps=2)))


def test_per_sample_clipping_can_be_differentiated():
    protocol = PerSampleClipping(inner=ls.FedSGD(), clip=0.3)
    model = ls.load_model("leakscope:mlp?hidden=4&activation=tanh", num_classes=3, image_size=2, seed=0)
    model.to(dtype=torch.float64)
    images = torch.rand((2, 3, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def energy(x):
        return flat(protocol.replay(model, x, torch.tensor([0, 2]), create_graph=True)).pow(3).sum()

    assert torch.autograd.gradcheck(energy, images.requires_grad_())
