"""The gradient through the replay: exact against finite differences in float64, fast against exact."""

import pytest
import torch

import leakscope as ls
from leakscope.attacks.differentiate import Problem, agreement, exact, fast
from leakscope.attacks.masks import ActivationPattern
from leakscope.attacks.member import Member
from leakscope.attacks.terms import ImageNorm, Match, RunningStatistics, TagDistance, TotalVariation, Weighted
from leakscope.functional import distances, priors


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def target(name, *, size=16, batch=2, dtype=torch.float64, mode="eval", **options):
    model = ls.load_model(name, num_classes=10, image_size=size, seed=0).to(dtype=dtype)
    for module in model.module.modules():  # statistics that say something
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(generator=seeded(3)).mul_(0.1)
            module.running_var.uniform_(0.5, 1.5, generator=seeded(4))
    images = ls.bundled_batch(["cat", "astronaut", "coffee", "brick"][:batch], size=size)
    seen = ls.observe(model, images, protocol=ls.FedSGD(mode=mode), threat=ls.threats.WITH_LABELS, generator=seeded())
    return seen


def point(seen, terms, **options):
    attack = ls.Optimisation(terms=terms, steps=1, **options)
    member = Member(0, attack, seen, seeded(1))
    return Problem.of(seen, terms), member


def loss_at(problem, member, shift):
    """The objective with the leaves moved by ``shift``; nothing but forward passes and one gradient."""
    for leaf, delta in zip(member.leaves, shift, strict=True):
        leaf.data.add_(delta)
    value, _ = exact(problem, member.leaves, member.candidate, 0.0)
    for leaf, delta in zip(member.leaves, shift, strict=True):
        leaf.data.sub_(delta)
    return float(value)


def finite_difference_error(problem, member, gradients, steps=(1e-5,)):
    """The relative error of directional derivatives, worst of three random directions.

    Of several ``steps`` the best counts: a long one may cross a kink, a short one drowns in rounding, and a wrong
    gradient agrees with none of them.
    """
    worst = 0.0
    for trial in range(3):
        direction = [torch.randn(g.shape, generator=seeded(trial), dtype=g.dtype) for g in gradients]
        analytic = float(sum((g * d).sum() for g, d in zip(gradients, direction, strict=True)))
        errors = []
        for h in steps:
            up = loss_at(problem, member, [h * d for d in direction])
            down = loss_at(problem, member, [-h * d for d in direction])
            numeric = (up - down) / (2 * h)
            errors.append(abs(numeric - analytic) / max(abs(numeric), 1e-8))
        worst = max(worst, min(errors))
    return worst


TERMS = {
    "l2": Match(distances.squared_l2),
    "cosine": Match(distances.cosine),
    "tag": Match(TagDistance(alpha=0.1, decay=1.0)),
    "tv": TotalVariation(),
    "tv-l2": TotalVariation(priors.total_variation_l2),
    "norm": ImageNorm(),
}


@pytest.mark.parametrize("term", TERMS)
def test_every_term_matches_finite_differences(term):
    seen = target("leakscope:lenet-dlg")
    problem, member = point(seen, (Weighted(term=TERMS[term]),))
    _, gradients = exact(problem, member.leaves, member.candidate, 0.0)
    assert finite_difference_error(problem, member, gradients) <= 1e-5


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_statistics_match_finite_differences(mode):
    seen = target("leakscope:resnet20", mode=mode)
    problem, member = point(seen, (Weighted(term=RunningStatistics()),))
    _, gradients = exact(problem, member.leaves, member.candidate, 0.0)
    # Small steps: the network is piecewise linear, and larger ones would cross its kinks.
    assert finite_difference_error(problem, member, gradients, steps=(1e-6, 1e-7, 3e-8, 1e-8)) <= 1e-5


def test_whole_objective_with_soft_labels_matches_finite_differences():
    from leakscope.attacks.labels import joint

    seen = target("leakscope:lenet-dlg")
    terms = (Weighted(term=Match(distances.cosine)), Weighted(term=TotalVariation(), weight=0.1))
    problem, member = point(seen, terms, labels=joint)
    _, gradients = exact(problem, member.leaves, member.candidate, 0.0)
    assert len(gradients) == 2
    assert finite_difference_error(problem, member, gradients) <= 1e-5
    _, quick = fast(problem, member.leaves, member.candidate, 0.0)
    assert agreement(quick, gradients) <= 1e-5


NETWORKS = [
    ("leakscope:lenet-dlg", 16, "eval"),
    ("leakscope:resnet20", 16, "eval"),
    ("leakscope:resnet20", 16, "train"),
    ("leakscope:convnet64", 32, "eval"),
    ("leakscope:mlp?hidden=32&activation=leaky", 8, "eval"),
    ("leakscope:april-b", 32, "eval"),
    ("timm:vit_tiny_patch16_224", 32, "eval"),
    ("timm:convnext_atto", 32, "eval"),
    ("torchvision:resnet18", 32, "eval"),
]


@pytest.mark.parametrize(("name", "size", "mode"), NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-2), (torch.float64, 1e-5)])
def test_fast_agrees_with_exact(name, size, mode, dtype, tolerance):
    seen = target(name, size=size, mode=mode, dtype=dtype)
    terms = [Weighted(term=Match(distances.cosine)), Weighted(term=TotalVariation(), weight=0.01)]
    if "resnet" in name:
        terms.append(Weighted(term=RunningStatistics(), weight=1e-3))
    problem, member = point(seen, tuple(terms))
    quick_loss, quick = fast(problem, member.leaves, member.candidate, 0.0)
    slow_loss, slow = exact(problem, member.leaves, member.candidate, 0.0)
    assert float(quick_loss) == pytest.approx(float(slow_loss), rel=1e-4)
    assert agreement(quick, slow) <= tolerance
    signs = (quick[0].sign() == slow[0].sign()).double().mean()
    assert signs >= 0.98


def test_without_frozen_patterns_the_difference_is_wrong(monkeypatch):
    """The control: what the frozen activation pattern is for."""
    seen = target("leakscope:resnet20", dtype=torch.float32)
    problem, member = point(seen, (Weighted(term=Match(distances.cosine)),))
    _, slow = exact(problem, member.leaves, member.candidate, 0.0)
    _, frozen = fast(problem, member.leaves, member.candidate, 0.0)
    monkeypatch.setattr("leakscope.attacks.masks._KINKS", {})
    _, loose = fast(problem, member.leaves, member.candidate, 0.0)
    assert agreement(loose, slow) > 10 * agreement(frozen, slow)


def test_patterns_reproduce_the_base_point_and_stay_linear():
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2), torch.nn.LeakyReLU(0.1)
    net = torch.nn.Sequential(*layers, torch.nn.ReLU6(), torch.nn.Hardtanh()).double()
    generator = seeded()
    x, y = (torch.randn(2, 3, 9, 9, generator=generator, dtype=torch.float64) for _ in range(2))
    pattern = ActivationPattern()
    with pattern.record():
        base = net(x)
    assert torch.equal(base, net(x))
    with pattern.impose():
        assert torch.equal(net(x), base)
    with pattern.impose():
        other = net(y)
    with pattern.impose():
        middle = net((x + y) / 2)
    assert torch.allclose(middle, (base + other) / 2)
    assert not torch.allclose(net(y), other)


def test_a_second_pass_of_another_shape_is_refused():
    pattern = ActivationPattern()
    with pattern.record():
        torch.relu(torch.ones(2))
    with pytest.raises(RuntimeError, match="another way"), pattern.impose():
        torch.relu(torch.relu(torch.ones(2)))


def test_statistics_refuse_a_model_that_has_none():
    seen = target("leakscope:lenet-dlg")
    with pytest.raises(ls.NotApplicable, match="no BatchNorm"):
        Problem.of(seen, (Weighted(term=RunningStatistics()),))
    model = ls.load_model("leakscope:resnet20", num_classes=10, image_size=16, seed=0)
    fresh = ls.observe(model, ls.bundled_batch(["cat"], size=16), protocol=ls.FedSGD(), generator=seeded())
    with pytest.raises(ls.NotApplicable, match="untrained"):
        Problem.of(fresh, (Weighted(term=RunningStatistics()),))


def test_no_hook_is_left_behind():
    seen = target("leakscope:resnet20")
    problem, member = point(seen, (Weighted(term=RunningStatistics()),))
    exact(problem, member.leaves, member.candidate, 0.0)
    assert all(not module._forward_pre_hooks for _, module in seen.model.named_modules())
