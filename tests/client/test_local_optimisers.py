"""Each step against torch.optim, on numbers of many sizes, with state."""

import pytest
import torch

import leakscope as ls
from leakscope.client.local_optimisers import Adam, Sgd, adamw

CASES = {
    "sgd": (Sgd(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (Sgd(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "nesterov, decay": (
        Sgd(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1),
    ),
    "adam": (Adam(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam, decay": (
        Adam(lr=0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
    ),
    "adamw": (adamw(lr=0.01, weight_decay=0.3), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_it_steps_as_torch_does(case, dtype):
    ours, theirs = CASES[case]
    draw = torch.Generator().manual_seed(0)
    start = {n: torch.randn(s, generator=draw, dtype=torch.float64).to(dtype) for n, s in (("a", (4, 3)), ("b", (5,)))}
    mine, state = dict(start), ours.start(start)
    leaves = {n: t.clone().requires_grad_() for n, t in start.items()}
    stepper = theirs(list(leaves.values()))
    for index in range(7):
        scale = 10.0 ** (index % 3 - 1)
        pushes = {
            n: scale * torch.randn(t.shape, generator=draw, dtype=torch.float64).to(dtype) for n, t in start.items()
        }
        if index < 3:
            pushes["b"][0] = 0.0  # a unit that has not fired yet
        mine, state = ours.step(mine, pushes, state, index)
        for name, leaf in leaves.items():
            leaf.grad = pushes[name]
        stepper.step()
    for name, leaf in leaves.items():
        torch.testing.assert_close(mine[name], leaf.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_several_steps_can_be_differentiated(case):
    ours, _ = CASES[case]
    draw = torch.Generator().manual_seed(1)
    start = {"a": torch.randn(6, generator=draw, dtype=torch.float64)}

    def after(*pushes):
        weights, state = dict(start), ours.start(start)
        for index, push in enumerate(pushes):
            weights, state = ours.step(weights, {"a": push}, state, index)
        return weights["a"]

    pushes = [torch.randn(6, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(3)]
    assert torch.autograd.gradcheck(after, pushes)


def test_a_gradient_of_zero_has_a_finite_derivative():
    adam, push = Adam(), torch.zeros(3, requires_grad=True)
    start = {"a": torch.ones(3)}
    moved, _ = adam.step(start, {"a": push}, adam.start(start), 0)
    (found,) = torch.autograd.grad(moved["a"].sum(), push)
    assert torch.isfinite(found).all()


def test_what_has_no_gradient_stays():
    for ours, _ in CASES.values():
        start = {"a": torch.ones(3), "idle": torch.ones(2)}
        moved, _ = ours.step(start, {"a": torch.ones(3)}, ours.start(start), 0)
        assert torch.equal(moved["idle"], start["idle"])
        assert not torch.equal(moved["a"], start["a"])


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_travel_is_the_way_along_a_constant_gradient(options):
    sgd = Sgd(lr=0.3, **options)
    start = {"a": torch.zeros(1, dtype=torch.float64)}
    weights, state = dict(start), sgd.start(start)
    for index in range(4):
        weights, state = sgd.step(weights, {"a": torch.ones(1, dtype=torch.float64)}, state, index)
    assert float(weights["a"]) == pytest.approx(-sgd.travel(4))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Sgd(lr=0), "lr is 0"),
        (lambda: Sgd(lr=float("nan")), "lr is nan"),
        (lambda: Sgd(momentum=1), "momentum is 1"),
        (lambda: Sgd(nesterov=True), "nesterov needs momentum"),
        (lambda: Sgd(weight_decay=-1), "weight_decay is -1"),
        (lambda: Adam(betas=(0.9,)), "two numbers"),
        (lambda: Adam(betas=(0.9, 1.0)), r"\[0, 1\)"),
        (lambda: Adam(eps=0), "eps is 0"),
    ],
)
def test_what_no_optimiser_takes_is_refused(build, words):
    with pytest.raises(ls.BadInput, match=words):
        build()
