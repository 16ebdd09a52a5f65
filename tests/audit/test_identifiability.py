"""What the signal determines, against explicit Jacobians and cases with a known answer."""

import math

import pytest
import torch

import leakscope as ls
from leakscope.audit.identifiability import analyse
from leakscope.client.registry import defence
from leakscope.functional.jacobian import Jacobian, dense_gram, ritz

SMALL = "leakscope:mlp?hidden=16&activation=tanh"


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def analysed(model=SMALL, *, size=4, images=("cat",), defences=(), **more):
    made = ls.load_model(model, image_size=size, num_classes=10)
    batch = ls.bundled_batch(list(images), size=size)
    return analyse(made, batch, protocol=ls.FedSGD(), defences=defences, generator=seeded(), **more)


@pytest.fixture(scope="module")
def small():
    """A function of images, its Jacobian by the library, and torch's own, explicit one."""
    model = ls.load_model("leakscope:mlp?hidden=8&activation=tanh", image_size=4, num_classes=10).to(
        dtype=torch.float64
    )
    batch = ls.bundled_batch(["cat"], size=4)
    protocol = ls.FedSGD()

    def function(images):
        return protocol.replay(model, images, batch.labels, create_graph=True)

    images = batch.images.double()
    scales = {name: 0.5 + index for index, name in enumerate(function(images))}

    def flat(images):
        return torch.cat([v.flatten() / scales[name] for name, v in function(images).items()])

    explicit = torch.autograd.functional.jacobian(flat, images).flatten(1)  # (m, n)
    return Jacobian(function, images, scales), explicit


def test_products_equal_those_of_the_explicit_jacobian(small):
    jacobian, explicit = small
    assert (jacobian.rows, jacobian.columns) == tuple(explicit.shape)
    columns = torch.randn(3, jacobian.columns, generator=seeded(), dtype=torch.float64)
    assert torch.allclose(jacobian.normal(columns), columns @ explicit.T @ explicit, rtol=1e-9, atol=1e-9)
    rows = jacobian.draw(seeded(3))
    stacked = torch.cat([u.flatten() for u in rows])
    assert torch.allclose(jacobian.transposed(rows), stacked @ explicit, rtol=1e-9, atol=1e-9)


def test_one_direction_at_a_time_gives_the_same(small, monkeypatch):
    jacobian, explicit = small
    from leakscope.functional import jacobian as module

    honest = module._grad

    def unbatched(*given, batch=None, **more):
        if batch is not None:
            raise RuntimeError("cannot be batched")
        return honest(*given, **more)

    monkeypatch.setattr(module, "_grad", unbatched)
    columns = torch.eye(jacobian.columns, dtype=torch.float64)[:2]
    assert torch.allclose(jacobian.normal(columns), columns @ explicit.T @ explicit, rtol=1e-9, atol=1e-9)


def test_singular_values_equal_those_of_the_explicit_jacobian(small):
    jacobian, explicit = small
    found = torch.linalg.eigvalsh(dense_gram(jacobian)).clamp_min(0).sqrt().flip(0)
    assert torch.allclose(found, torch.linalg.svdvals(explicit), rtol=1e-5)


def test_probes_bound_singular_values_from_below(small):
    jacobian, explicit = small
    true = torch.linalg.svdvals(explicit)
    found, frobenius = ritz(jacobian, 12, seeded())
    assert bool((found <= true[:12] * (1 + 1e-9)).all())
    assert float(found[0]) > 0.5 * float(true[0])
    assert frobenius == pytest.approx(float(explicit.square().sum()), rel=0.8)
    everything, _ = ritz(jacobian, jacobian.columns, seeded())
    assert torch.allclose(everything, true, rtol=1e-4)


def test_an_undefended_gradient_of_one_image_determines_it():
    found = analysed()
    assert found["recoverable"] == found["unknowns"] == 48
    assert found["conclusion"] == "there"
    assert found["psnr_at_most"] > 100
    assert 1e-9 < found["relative_noise"] < 1e-6
    assert "weak attack" in found["summary"]


def test_noise_takes_it_away_in_proportion():
    some, more, most = (analysed(defences=[defence("gaussian-noise", scale=s)]) for s in (0.1, 1.0, 1000.0))
    assert some["relative_noise"] == pytest.approx(0.1, rel=0.2)
    ratios = [a / b for a, b in zip(some["singular_values"], more["singular_values"], strict=True)]
    assert ratios == pytest.approx([10.0] * len(ratios), rel=0.02)
    assert some["recoverable"] > more["recoverable"] >= most["recoverable"] == 0
    assert most["conclusion"] == "missing"
    assert "information is missing" in most["summary"]
    # A pixel of which only the range is known: variance 1/12.
    assert most["psnr_at_most"] == pytest.approx(10 * math.log10(12), abs=0.01)


def test_a_withheld_layer_leaves_what_the_rest_determines():
    found = analysed(defences=[defence("withhold", what="all-but-head")])
    # The last layer's gradient gives its input, sixteen numbers, and no more.
    assert found["recoverable"] == 16
    assert found["conclusion"] == "partly there"
    assert found["equations"] == 16 * 10 + 10


def test_no_attack_beats_the_bound():
    """The closed form on noisy gradients, over draws of the noise, against the bound of the mean squared error."""
    model = ls.load_model("leakscope:mlp?hidden=4&activation=tanh", image_size=4, num_classes=10)
    batch = ls.bundled_batch(["cat"], size=4)
    steps = [defence("gaussian-noise", scale=0.02)]
    bound = analyse(model, batch, protocol=ls.FedSGD(), defences=steps, generator=seeded())["psnr_at_most"]
    errors = []
    for seed in range(20):
        seen = ls.observe(model, batch, protocol=ls.FedSGD(), defences=steps, generator=seeded(seed))
        delta, slope = seen.signal["fc1.bias"].double(), seen.signal["fc1.weight"].double()
        pixels = (delta @ slope / delta.square().sum()).view_as(batch.images)  # least squares for δ xᵀ = ∂L/∂W
        errors.append(float((pixels * model.std + model.mean - batch.images).square().mean()))
    reached = -10 * math.log10(sum(errors) / len(errors))
    assert reached < bound + 1
    assert reached > bound - 12  # the bound says something


def test_each_image_of_a_batch_has_its_own_bound():
    found = analysed("leakscope:lenet-dlg", images=("cat", "coffee"))
    assert len(found["psnr_at_most_by_image"]) == 2
    assert found["unknowns"] == 96


def test_large_inputs_are_probed():
    found = analysed("leakscope:lenet-dlg", size=8, dense=100, probes=6)
    whole = analysed("leakscope:lenet-dlg", size=8)
    assert found["probes"] == len(found["singular_values"]) == found["recoverable"] == 6
    assert found["conclusion"] == "not settled"
    assert all(a <= b * 1.001 for a, b in zip(found["singular_values"], whole["singular_values"], strict=False))
    assert found["psnr_at_most"] >= whole["psnr_at_most"]
    drowned = analysed(
        "leakscope:lenet-dlg", size=8, dense=100, probes=6, defences=[defence("gaussian-noise", scale=1e3)]
    )
    assert drowned["conclusion"] == "missing"


def test_the_model_comes_back_as_it_was_and_the_result_is_the_same_again():
    model = ls.load_model(SMALL, image_size=4, num_classes=10)
    batch = ls.bundled_batch(["cat"], size=4)
    before = (model.fingerprint(), model.dtype)
    found = [analyse(model, batch, protocol=ls.FedSGD(), generator=seeded()) for _ in range(2)]
    assert found[0] == found[1]
    assert (model.fingerprint(), model.dtype) == before


def test_what_cannot_be_used_is_refused():
    with pytest.raises(ls.BadInput, match="resolution"):
        analysed(resolution=0.0)
