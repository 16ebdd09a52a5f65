"""The terms of GradViT, GradInversion and APRIL: gradients against finite differences, and what each is for."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

import leakscope as ls
from leakscope.attacks.differentiate import Problem, exact
from leakscope.attacks.member import Member
from leakscope.attacks.registration import consensus, register, warp
from leakscope.attacks.schedules import GRADIENT, IMAGE, WarmUp
from leakscope.attacks.terms import Candidate, Evaluation, ImageNorm, Match, Weighted
from leakscope.attacks.terms.classified import Classified
from leakscope.attacks.terms.group import GroupConsistency
from leakscope.attacks.terms.image_prior import ImagePrior
from leakscope.attacks.terms.patch_joints import PatchJoints
from leakscope.attacks.terms.position import PositionDirection
from leakscope.client.registry import defence
from leakscope.functional.distances import squared_l2
from leakscope.functional.priors import patch_joints
from leakscope.models.image_prior import load_image_prior

PRIOR = "leakscope:resnet20"


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def trained_prior(tmp_path_factory):
    """A small CNN whose statistics have seen pictures, as a checkpoint."""
    model = ls.load_model(PRIOR, seed=0)
    with model.mode(training=True), torch.no_grad():
        for _ in range(3):
            model(ls.bundled_batch(size=32).images)
    path = tmp_path_factory.mktemp("prior") / "resnet20.pt"
    torch.save(model.state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def seen():
    model = ls.load_model("leakscope:april-b?dim=64&depth=2", num_classes=10, image_size=16, seed=0).to(
        dtype=torch.float64
    )
    batch = ls.bundled_batch(["cat", "astronaut"], size=16)
    return ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded())


@pytest.fixture(scope="module")
def small():
    """A target for what the loop does, whatever the network."""
    model = ls.load_model("leakscope:mlp?hidden=16&activation=tanh", num_classes=10, image_size=8, seed=0)
    batch = ls.bundled_batch(["cat"], size=8)
    return ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded())


def objective(seen, term, peers=()):
    """(function of a shift of the images, gradient at zero) of one term alone."""
    terms = (Weighted(term=term),)
    problem = Problem.of(seen, terms)
    member = Member(0, ls.Optimisation(terms=terms, steps=1), seen, seeded(1))
    (leaf,) = member.leaves

    def value(shift):
        leaf.data.add_(shift)
        found, _ = exact(problem, member.leaves, lambda: member.candidate(peers), 0.0)
        leaf.data.sub_(shift)
        return float(found)

    _, (gradient,) = exact(problem, member.leaves, lambda: member.candidate(peers), 0.0)
    return value, gradient


def worst_error(value, gradient, steps=(1e-5,)):
    """Relative error of directional derivatives, the worst of three; of several steps the best, as kinks demand."""
    worst = 0.0
    for trial in range(3):
        direction = torch.randn(gradient.shape, generator=seeded(trial), dtype=gradient.dtype)
        analytic = float((gradient * direction).sum())
        numeric = [(value(h * direction) - value(-h * direction)) / (2 * h) for h in steps]
        worst = max(worst, min(abs(n - analytic) / max(abs(n), 1e-8) for n in numeric))
    return worst


@pytest.mark.parametrize("term", [PatchJoints(), PositionDirection(), Classified()], ids=lambda t: type(t).__name__)
def test_terms_match_finite_differences(seen, term):
    assert worst_error(*objective(seen, term)) <= 1e-5


@pytest.mark.parametrize("size", [None, 24])
def test_image_prior_matches_finite_differences(seen, trained_prior, size):
    term = ImagePrior(network=PRIOR, weights=trained_prior, size=size)
    assert worst_error(*objective(seen, term), steps=(1e-6, 1e-7)) <= 1e-5


def test_image_prior_is_the_sum_over_layers_and_prefers_pictures(seen, trained_prior):
    bound = ImagePrior(network=PRIOR, weights=trained_prior).bind(seen)
    pictures = ls.bundled_batch(["cat", "astronaut"], size=16).images.double()

    def at(images):
        guess = Candidate(images=images, inputs=images, labels=torch.zeros(2, dtype=torch.long))
        return float(bound(guess, Evaluation(signal={})))

    # The same sum written out, with BatchNorm's own arithmetic: in train mode with momentum 1 its buffers are the
    # batch's statistics, up to the n/(n − 1) of its running variance.
    prior = load_image_prior(PRIOR, trained_prior, dtype=torch.float64)
    expected = 0.0
    for layer, features in prior.inputs_of_norms(pictures):
        norm = torch.nn.BatchNorm2d(features.shape[1], momentum=1.0).double().train()
        norm(features)
        n = features.numel() // features.shape[1]
        expected += float((norm.running_mean - layer.mean).norm())
        expected += float((norm.running_var * (n - 1) / n - layer.variance).norm())
    assert at(pictures) == pytest.approx(expected, rel=1e-9)
    noise = torch.rand(pictures.shape, generator=seeded(2), dtype=torch.float64)
    assert at(pictures) < at(noise)


def test_patch_joints_are_equation_8_and_both_sides_move():
    images = torch.randn(2, 3, 12, 8, generator=seeded(), dtype=torch.float64, requires_grad=True)
    slow = sum((images[:, :, 4 * k] - images[:, :, 4 * k - 1]).norm() for k in (1, 2))
    slow = slow + (images[..., 4] - images[..., 3]).norm()
    fast = patch_joints(images, (4, 4))
    assert float(fast.detach()) == pytest.approx(float(slow.detach()), rel=1e-12)
    (gradient,) = torch.autograd.grad(fast, images)
    touched = gradient.abs().sum((0, 1))
    rows, columns = {3, 4, 7, 8}, {3, 4}
    for r in range(12):
        for c in range(8):
            assert (touched[r, c] > 0) == (r in rows or c in columns), (r, c)
    # Down the middle of a patch only the horizontal joints act, and the two sides of each move against one another.
    torch.testing.assert_close(gradient[:, :, 3, :3], -gradient[:, :, 4, :3])
    assert float(patch_joints(images.detach(), (12, 8))) == 0


def test_group_consistency_pulls_to_the_mean_of_detached_peers(seen):
    peers = tuple(torch.rand(2, 3, 16, 16, generator=seeded(i), dtype=torch.float64) for i in (5, 6))
    value, gradient = objective(seen, GroupConsistency(align="none"), peers)
    # The consensus holds a share of the member itself, as a constant: the gradient is the unit vector away from it.
    assert float(gradient.norm()) == pytest.approx(1.0, rel=1e-9)
    before = value(torch.zeros_like(gradient))
    after = value(-0.1 * gradient)
    assert before - after == pytest.approx(0.1 * 2 / 3, rel=1e-6)  # at the new point the group has moved by a third
    broken = (*peers, torch.full_like(peers[0], float("nan")))
    assert objective(seen, GroupConsistency(align="none"), broken)[0](torch.zeros_like(gradient)) == before
    assert objective(seen, GroupConsistency())[0](torch.zeros_like(gradient)) == 0


def test_terms_refuse_what_does_not_fit(seen):
    lenet = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=16, seed=0)
    batch = ls.bundled_batch(["cat"], size=16)
    plain = ls.observe(lenet, batch, protocol=ls.FedSGD(), generator=seeded())
    for term, reason in ((PatchJoints(), "no patch embedding"), (PositionDirection(), "no position embedding")):
        with pytest.raises(ls.NotApplicable, match=reason):
            term.bind(plain)
    hidden = ls.observe(
        seen.model,
        ls.bundled_batch(["cat"], size=16),
        protocol=ls.FedSGD(),
        defences=(defence("withhold", what="position-embedding"),),
        generator=seeded(),
    )
    with pytest.raises(ls.NotApplicable, match="does not share it"):
        PositionDirection().bind(hidden)


def test_schedules_are_the_papers():
    total = 10
    assert [GRADIENT(t / total) for t in range(total)] == [1.0] * 5 + [0.5] * 5
    assert [IMAGE(t / total) for t in range(total)] == [0.0] * 5 + [1.0] * 5
    warm = WarmUp(steps=50, of=20_000)
    assert warm(0) == pytest.approx(1 / 50)
    assert warm(49 / 20_000) == pytest.approx(1)
    assert warm(50 / 20_000) == pytest.approx(1)
    assert warm((50 + 19_950 / 2) / 20_000) == pytest.approx(0.5)
    with pytest.raises(ls.BadInput, match="does not fit"):
        WarmUp(steps=10, of=10)


def test_registration_undoes_a_shift_and_a_bend():
    pytest.importorskip("skimage")
    picture = ls.bundled_batch(["cat"], size=64).images
    moved = picture.roll((5, -3), dims=(2, 3))
    inner = (..., slice(8, -8), slice(8, -8))

    def error(one):
        return float((one - picture)[inner].square().mean())

    assert error(register(moved, picture, "shift")) < 1e-6 < error(moved)
    assert error(register(moved, picture, "flow")) < 1e-6
    rows, columns = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    bend = np.stack([1.5 * np.sin(columns / 10), 1.5 * np.cos(rows / 10)])
    bent = warp(picture[0], bend)[None]
    assert error(register(bent, picture, "flow")) < 0.5 * error(bent)
    noise = torch.rand(picture.shape, generator=seeded())
    assert error(register(noise, picture)) <= error(noise)


def test_the_consensus_is_sharper_after_registration():
    pytest.importorskip("skimage")
    picture = ls.bundled_batch(["cat"], size=64).images
    members = [picture, picture, picture.roll(4, dims=3)]
    inner = (..., slice(8, -8), slice(8, -8))

    def error(one):
        return float((one - picture)[inner].square().mean())

    assert torch.equal(consensus(members, "none"), torch.stack(members).mean(0))
    assert error(consensus(members, "shift")) < 0.1 * error(consensus(members, "none"))


def test_a_group_runs_in_lockstep_and_draws_together(small):
    def spread(weight):
        terms = (Weighted(term=Match(squared_l2)), Weighted(term=GroupConsistency(align="none"), weight=weight))
        ends = {}

        def keep(progress):
            ends[progress.restart] = progress.images()

        made = ls.Optimisation(terms=terms, steps=12, population=2)
        found = made(small, generator=seeded(3), callback=keep)
        assert len(found.trace) == 2
        return float((ends[0] - ends[1]).norm())

    assert spread(100.0) < 0.5 * spread(1e-9)


def test_update_noise_changes_the_run_and_resumes_with_the_same_bits(small, tmp_path):
    terms = (Weighted(term=Match(squared_l2)),)
    quiet = ls.Optimisation(terms=terms, steps=6)
    noisy = ls.Optimisation(terms=terms, steps=6, noise=0.2)
    whole = noisy(small, generator=seeded(3))
    assert quiet(small, generator=seeded(3)).trace != whole.trace
    assert quiet(small, generator=seeded(3)).trace[0][0] == whole.trace[0][0]
    checkpoint = ls.Checkpoint(folder=tmp_path, every=0.0)

    def interrupt(progress):
        if progress.step == 3:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        replace(noisy, checkpoint=checkpoint)(small, generator=seeded(3), callback=interrupt)
    assert replace(noisy, checkpoint=checkpoint)(small, generator=seeded(3)).trace == whole.trace
    with pytest.raises(ls.BadInput, match="noise"):
        ls.Optimisation(terms=terms, steps=1, noise=-1.0)


def test_the_best_counts_anew_when_the_weights_change(small):
    """Else a term that comes in late could never win: every loss before it is lower."""
    terms = (Weighted(term=Match(squared_l2)), Weighted(term=ImageNorm(), weight=1e3, schedule=IMAGE))
    found = ls.Optimisation(terms=terms, steps=8)(small, generator=seeded(3))
    (trace,) = found.trace
    assert max(trace[:4]) < min(trace[4:])
    assert found.energy == min(trace[4:])


def test_a_group_gives_the_same_bits_in_one_process_and_in_two(small, tmp_path):
    """Four steps in two processes and, after they were cut off, the rest in one: the same as all of it in one."""
    terms = (Weighted(term=Match(squared_l2)), Weighted(term=GroupConsistency(align="none"), weight=0.1))
    alone = ls.Optimisation(terms=terms, steps=8, population=3)
    kept = ls.Checkpoint(folder=tmp_path, every=0.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # as many as each of two workers gets
    told, steps = [], []

    def interrupt(progress):
        told.append((progress.step, progress.restart))
        if progress.step == 5:
            raise RuntimeError("killed")

    try:
        whole = alone(small, generator=seeded(3))
        with pytest.raises(RuntimeError, match="killed"):
            replace(alone, workers=2, checkpoint=kept)(small, generator=seeded(3), callback=interrupt)
        resumed = replace(alone, checkpoint=kept)(small, generator=seeded(3), callback=lambda p: steps.append(p.step))
    finally:
        torch.set_num_threads(threads)
    assert told == [(step, member) for step in range(1, 5) for member in range(3)] + [(5, 0)]
    assert steps[0] == 5
    assert resumed.trace == whole.trace
    assert torch.equal(resumed.images, whole.images)
    assert replace(alone, terms=terms[:1])(small, generator=seeded(3)).trace != whole.trace


def test_a_refusal_in_a_worker_is_the_attacks_own(small):
    terms = (Weighted(term=PositionDirection()), Weighted(term=GroupConsistency(align="none")))
    with pytest.raises(ls.NotApplicable, match="no position embedding"):
        ls.Optimisation(terms=terms, steps=2, population=2, workers=2)(small, generator=seeded(3))
