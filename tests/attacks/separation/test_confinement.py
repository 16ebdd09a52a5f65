"""The space that two gradients leave to the patches of a batch, and searching in it."""

from dataclasses import replace

import pytest
import torch
from batches import photographs, seen, vit

import leakscope as ls
from leakscope.attacks.member import Member
from leakscope.attacks.parts import box
from leakscope.attacks.separation.confinement import confine, factor
from leakscope.attacks.terms import Match, Weighted
from leakscope.functional.distances import squared_l2


@pytest.mark.parametrize("count", [1, 2, 4])
def test_true_patches_lie_inside_a_small_space(count):
    model, batch = vit(dtype=torch.float32), photographs(count)
    space = confine(seen(model, batch))
    inputs = model.normalise(batch.images)
    assert space.shape == (count, 16, 16 * (count - 1))
    assert space.miss(inputs) < 1e-4
    assert space.miss(torch.randn(inputs.shape, generator=torch.Generator().manual_seed(3))) > 0.3


def test_in_double_precision_they_lie_inside_exactly():
    model, batch = vit(), photographs(3)
    assert confine(seen(model, batch)).miss(model.normalise(batch.images.double())) < 1e-9


def test_coordinates_and_images_are_inverse():
    space = confine(seen(vit(), photographs(2)))
    free = torch.randn(space.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(space.encode(space(free)), free, atol=1e-10)


def test_a_hidden_batch_size_is_read_off_the_rank():
    model = vit()
    for count in (1, 2, 3):
        assert confine(seen(model, photographs(count), threat=ls.ThreatModel(name="nothing"))).images == count


def test_too_many_patches_and_noise_are_refused():
    with pytest.raises(ls.NotApplicable, match="can keep at most 47"):
        confine(seen(vit(width=48), photographs(4)))

    def noisy(signal):
        draw = torch.Generator().manual_seed(0)
        return {n: g + 1e-2 * g.std() * torch.randn(g.shape, generator=draw, dtype=g.dtype) for n, g in signal.items()}

    with pytest.raises(ls.NotApplicable, match="does not have the rank 32"):
        confine(seen(vit(), photographs(2), signal=noisy))


def test_factor_splits_a_matrix():
    draw = torch.Generator().manual_seed(0)
    whole = torch.randn(20, 3, generator=draw, dtype=torch.float64) @ torch.randn(3, 30, generator=draw).double()
    found = factor(whole, 3, "a test")
    assert torch.allclose(found.left * found.values @ found.right.mT, whole)
    assert float(found.off_left(whole).norm()) < 1e-10
    assert float(found.off_right(whole.mT).norm()) < 1e-10
    assert found.gap < 1e-10


def recipe(**options):
    return ls.Optimisation(terms=(Weighted(term=Match(squared_l2)),), steps=3, decode=confine, **options)


@pytest.mark.parametrize("gradient", ["exact", "fast"])
def test_the_gradient_reaches_the_coordinates(gradient):
    from leakscope.attacks import differentiate

    observation = seen(vit(), photographs(2), threat=ls.threats.WITH_LABELS)
    attack = recipe()
    problem = differentiate.Problem.of(observation, attack.terms)
    member = Member(0, attack, observation, torch.Generator().manual_seed(0))
    way = getattr(differentiate, gradient)
    _, (found,) = way(problem, member.leaves, member.candidate, 0.0)
    leaf = member.leaves[0]
    direction = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(1), dtype=leaf.dtype)
    losses = []
    for step in (1e-4, -1e-4):
        with torch.no_grad():
            leaf += step * direction
        losses.append(float(way(problem, member.leaves, member.candidate, 0.0)[0]))
        with torch.no_grad():
            leaf -= step * direction
    slope = (losses[0] - losses[1]) / 2e-4
    assert float((found * direction).sum()) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("project", [None, box])
def test_an_optimisation_stays_inside(project):
    model, batch = vit(), photographs(2)
    observation = seen(model, batch, threat=ls.threats.WITH_LABELS)
    attack = recipe(project=project)
    member = Member(0, attack, observation, torch.Generator().manual_seed(0))
    inside = confine(observation)
    assert inside.miss(member.candidate().inputs.detach()) < 1e-9
    result = attack(observation, generator=torch.Generator().manual_seed(0))
    free = replace(attack, decode=None)(observation, generator=torch.Generator().manual_seed(0))
    assert result.images.shape == batch.images.shape
    assert result.trace[0][-1] < result.trace[0][0]
    assert not torch.equal(result.images, free.images)
