"""A Gaussian of public images: a space to search, a term, and the attack that leans on both."""

import pytest
import torch

import leakscope as ls
from leakscope.attacks.gaussian import Improbability, public_gaussian
from leakscope.attacks.terms import Candidate, Evaluation


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def slopes(count, seed=0, size=8):
    """Smooth pictures with six degrees of freedom each."""
    draw = torch.rand(count, 3, 2, generator=seeded(seed))
    axis = torch.linspace(-0.5, 0.5, size)
    made = draw[..., 0, None, None] * axis[:, None] + draw[..., 1, None, None] * axis
    return ls.Batch(images=0.5 + 0.45 * made, labels=torch.zeros(count).long())


def observed(scale=0.01, threat=ls.threats.WITH_PUBLIC_DATA, public=None, seed=50):
    model = ls.load_model("leakscope:lenet-lti", num_classes=4, image_size=8, seed=0)
    batch = slopes(1, seed=seed)
    noise = (ls.defence("gaussian-noise", scale=scale, per="entry"),) if scale else ()
    seen = ls.observe(
        model,
        batch,
        protocol=ls.FedSGD(),
        threat=threat,
        public=public or slopes(200),
        defences=noise,
        generator=seeded(1),
    )
    return seen, batch


def test_the_coordinates_of_public_images_are_white_and_lead_back():
    seen, _ = observed()
    space, model = public_gaussian(seen), seen.model
    inputs = model.normalise(slopes(200).images)
    coordinates = space.encode(inputs)
    assert torch.allclose(space(coordinates), inputs, atol=1e-3)
    assert torch.allclose(space(torch.zeros(space.shape))[0], inputs.mean(0), atol=1e-5)
    spread = torch.cov(coordinates.mT, correction=0).diagonal()
    # Six axes carry all of it; along the others these images do not vary at all.
    assert torch.allclose(spread[-6:], torch.ones(6), atol=0.1)
    assert float(spread[:-6].max()) < 0.1


def test_the_term_is_the_squared_length_of_the_coordinates():
    seen, _ = observed()
    space = public_gaussian(seen)
    free = torch.randn(space.shape, generator=seeded(3))
    inputs = space(free)
    guess = Candidate(images=seen.model.denormalise(inputs), inputs=inputs, labels=torch.zeros(1).long())
    far = Improbability().bind(seen)(guess, Evaluation(signal={}))
    assert float(far) == pytest.approx(float(free.square().sum()), rel=1e-3)
    (gap,) = Improbability().residuals(seen)(guess, Evaluation(signal={})).values()
    assert float(gap.square().sum()) == pytest.approx(float(far))


def test_under_noise_it_reads_what_plain_matching_does_not():
    errors = {"posterior": [], "inverting-gradients": [], "mean": []}
    mean = slopes(200).images.mean(0)
    for seed in (50, 51, 52):
        seen, batch = observed(seed=seed)
        for name, options in (("posterior", {"noise": 0.01}), ("inverting-gradients", {})):
            found = ls.attack(name, steps=80, **options)(seen, generator=seeded(2))
            errors[name].append(float((found.images - batch.images).square().mean()))
        errors["mean"].append(float((mean - batch.images).square().mean()))
    totals = {name: sum(found) for name, found in errors.items()}
    assert totals["posterior"] < 0.3 * totals["mean"]
    assert totals["posterior"] < 0.3 * totals["inverting-gradients"]


def test_it_needs_public_images_small_ones_and_some_noise():
    seen, _ = observed(threat=ls.threats.WITH_LABELS)
    with pytest.raises(ls.MissingKnowledge, match="public"):
        ls.attack("posterior", steps=1)(seen, generator=seeded())
    with pytest.raises(ls.BadInput, match="two public images"):
        public_gaussian(observed(public=slopes(1))[0])
    with pytest.raises(ls.BadInput, match="more than 0"):
        ls.attack("posterior", noise=0.0)
