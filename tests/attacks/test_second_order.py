"""Levenberg–Marquardt: it squares the error near the truth, keeps to its bounds, and says where it does not fit."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import leakscope as ls
from leakscope.attacks.differentiate import Problem, exact
from leakscope.attacks.linearised import ByProducts, Dense
from leakscope.attacks.member import Member
from leakscope.attacks.optimisation import Checkpoint
from leakscope.attacks.parts import EvenGrey, box, cosine_decay, normal, sign
from leakscope.attacks.second_order import LevenbergMarquardt
from leakscope.attacks.terms import Match, TotalVariation, Weighted
from leakscope.client.fedavg import FedAvg
from leakscope.client.local_optimisers import Sgd
from leakscope.functional.distances import cosine, relative_l2, squared_l2
from leakscope.functional.jacobian import Jacobian
from leakscope.functional.least_squares import CountSketch, conjugate_gradients, damped_factor


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def target(name="leakscope:mlp?hidden=32&activation=tanh", size=4, protocol=None, dtype=torch.float64):
    model = ls.load_model(name, num_classes=10, image_size=size, seed=0).to(dtype=dtype)
    batch = ls.bundled_batch(["cat"], size=size)
    seen = ls.observe(
        model, batch, protocol=protocol or ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded(0)
    )
    return seen, batch.images.to(dtype)


@pytest.fixture(scope="module")
def small():
    return target()


def least_squares(**options):
    terms = options.pop("terms", (Weighted(term=Match(squared_l2)),))
    steps, init = options.pop("steps", 12), options.pop("init", EvenGrey())
    return ls.Optimisation(terms=terms, steps=steps, init=init, optimiser=LevenbergMarquardt(**options))


def error(rec, images):
    return float((rec.images - images).abs().max())


@pytest.mark.parametrize("solver", ["dense", "cg"])
def test_it_reaches_machine_precision_and_squares_the_error(small, solver):
    seen, images = small
    attack = least_squares(solver=solver, corrections=0, tolerance=1e-10, iterations=300)
    rec = attack(seen, generator=seeded())
    assert error(rec, images) < 1e-12
    (trace,) = rec.trace
    sizes = [math.log10(max(loss, 1e-32)) / 2 for loss in trace]  # log₁₀ ‖r‖
    gains = [sizes[k] - sizes[k + 1] for k in range(len(sizes) - 1) if -9 < sizes[k] < -1 and sizes[k + 1] > -14]
    # From step to step ever more digits are won, where gradient steps win the same each time.
    assert len(gains) >= 2
    assert all(later > 1.6 * earlier for earlier, later in pairwise(gains))


def test_corrections_save_linearisations(small):
    seen, _ = small
    with_them = least_squares(corrections=3, steps=3)(seen, generator=seeded())
    without = least_squares(corrections=0, steps=3)(seen, generator=seeded())
    assert with_them.energy < 1e-2 * without.energy


def test_dense_and_conjugate_gradients_take_the_same_step(small):
    seen, images = small
    x = torch.rand(images.shape, generator=seeded(), dtype=torch.float64)

    def function(pixels):
        return seen.protocol.replay(seen.model, pixels, seen.labels, create_graph=True)

    jacobian = Jacobian(function, x, dict.fromkeys(seen.signal, 1.0))
    rows = torch.cat([(function(x)[n] - seen.signal[n]).detach().flatten() for n in seen.signal])
    assert len(rows) == jacobian.rows
    dense = Dense(jacobian, None)
    products = ByProducts(jacobian, iterations=500, tolerance=1e-13, generator=seeded())
    damping = 1e-3 * dense.diagonal
    one, other = dense.step(rows, damping), products.step(rows, damping)
    torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)
    assert dense.gain(rows, one) == pytest.approx(products.gain(rows, other), rel=1e-9)
    assert products.diagonal == pytest.approx(dense.diagonal, rel=1)
    # Against an outside solver: the damped step is the least-squares solution of [J; √μ I] d = [−r; 0].
    full = jacobian.apply(torch.eye(jacobian.columns, dtype=torch.float64)).T
    stacked = torch.cat([full, damping**0.5 * torch.eye(jacobian.columns, dtype=torch.float64)])
    right = torch.cat([-rows, torch.zeros(jacobian.columns, dtype=torch.float64)])
    torch.testing.assert_close(one, torch.linalg.lstsq(stacked, right).solution, rtol=1e-7, atol=1e-10)


def test_a_sketch_keeps_the_solution_of_a_consistent_system():
    a = torch.randn(600, 20, generator=seeded(), dtype=torch.float64)
    d = torch.randn(20, generator=seeded(2), dtype=torch.float64)
    sketch = CountSketch.draw(600, 40, a, seeded(3))
    thin = sketch(a.T)  # (20, 40)
    factor = damped_factor(thin @ thin.T, 0.0)
    found = torch.cholesky_solve((thin @ sketch(a @ d))[:, None], factor)[:, 0]
    torch.testing.assert_close(found, d)
    assert damped_factor(-torch.eye(3), 0.5) is None
    by_products = conjugate_gradients(lambda w: a.T @ (a @ w), -a.T @ (a @ d), 0.0, iterations=60, tolerance=1e-12)
    torch.testing.assert_close(by_products, d)


def test_large_layers_have_no_rows_unless_they_are_needed():
    wide = "leakscope:mlp?hidden=64,60&activation=tanh"
    seen, images = target(wide)
    whole = least_squares(entries=10**6)(seen, generator=seeded())
    part = least_squares(entries=700)(seen, generator=seeded())  # without the middle layer, 64 × 60
    assert error(part, images) < 1e-10
    assert part.trace[0][0] == whole.trace[0][0]
    assert part.trace != whole.trace
    # The head's gradient shows 9 logits and the last layer 4 features: not enough for 48 pixels, so the rest comes in.
    narrow, images = target("leakscope:mlp?hidden=64,4&activation=tanh")
    rec = least_squares(entries=70, rows=1)(narrow, generator=seeded())
    assert error(rec, images) < 1e-10


def test_damping_falls_tenfold_after_a_kept_promise(small):
    seen, _ = small
    attack = least_squares(corrections=0)
    member, problem = Member(0, attack, seen, seeded()), Problem.of(seen, attack.terms)
    damping = []
    for step in range(3):
        member.advance(step, problem, exact, ())
        damping.append(member.state()["optimiser"]["damping"])
    assert damping[1] < 0.11 * damping[0]
    assert damping[2] < 0.01 * damping[1]  # as far as the loss fell


def test_a_step_that_raises_the_loss_is_taken_back():
    """Where ReLUs flip, promises are broken: the point must stay, and the best loss never rise."""
    seen, _ = target("leakscope:mlp?hidden=32&activation=relu")
    rec = least_squares(kinks=True, init=normal, damping=1e-8, tries=1, steps=6)(seen, generator=seeded())
    (trace,) = rec.trace
    assert all(later <= earlier for earlier, later in pairwise(trace))
    assert any(later == earlier for earlier, later in pairwise(trace))


def test_resumed_gives_the_same_bits(small, tmp_path):
    seen, _ = small
    attack = least_squares(steps=5)
    whole = attack(seen, generator=seeded())
    keeping = replace(attack, checkpoint=Checkpoint(folder=tmp_path, every=0))

    def pull_the_plug(progress):
        if progress.step == 3:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        keeping(seen, generator=seeded(), callback=pull_the_plug)
    steps = []
    resumed = keeping(seen, generator=seeded(), callback=lambda p: steps.append(p.step))
    assert steps[0] == 3
    assert resumed.trace == whole.trace
    assert torch.equal(resumed.images, whole.images)


def test_it_says_where_it_does_not_fit(small):
    seen, _ = small
    relu, _ = target("leakscope:mlp?hidden=32&activation=relu")
    with pytest.raises(ls.NotApplicable, match="1 ReLU"):
        least_squares()(relu, generator=seeded())
    with pytest.raises(ls.NotApplicable, match="'cosine' is not a sum of squares"):
        least_squares(terms=(Weighted(term=Match(cosine)),))(seen, generator=seeded())
    both = (Weighted(term=Match(squared_l2)), Weighted(term=TotalVariation(), weight=1e-3))
    with pytest.raises(ls.NotApplicable, match="TotalVariation"):
        least_squares(terms=both)(seen, generator=seeded())
    with pytest.raises(ls.NotApplicable, match="labels"):
        replace(ls.attack("dlg", steps=2), optimiser=LevenbergMarquardt())(seen, generator=seeded())
    for options in ({"transforms": (sign,)}, {"schedule": cosine_decay}, {"noise": 0.1}, {"gradient": "fast"}):
        with pytest.raises(ls.BadInput, match="would do nothing"):
            replace(least_squares(), **options)
    with pytest.raises(ls.BadInput, match="damping"):
        LevenbergMarquardt(damping=0.0)
    with pytest.raises(ls.BadInput, match="rows"):
        LevenbergMarquardt(rows=0)


def test_it_takes_a_client_that_trains_and_a_box():
    seen, images = target(protocol=FedAvg(optimiser=Sgd(lr=0.1), epochs=2, batch_size=1))
    rec = replace(least_squares(steps=10), project=box)(seen, generator=seeded())
    assert error(rec, images) < 1e-8


def test_the_recipe_and_its_options():
    seen, images = target("leakscope:lenet-dlg", size=8, dtype=torch.float32)
    rec = ls.attack("gauss-newton", steps=12)(seen, generator=seeded())
    assert rec.outcome.status is ls.Status.TARGET_REACHED
    assert error(rec, images) < 1e-3
    for options in ({"relative": False}, {"solver": "cg"}, {"damping": 1.0}, {"grey": 0.1}):
        other = ls.attack("gauss-newton", steps=2, **options)(seen, generator=seeded())
        assert other.trace[0] != rec.trace[0][:2]


def test_relative_distance_weighs_layers_alike():
    observed = [torch.full((4,), 100.0), torch.full((9,), 1e-3), torch.zeros(2)]
    replayed = [1.1 * observed[0], 1.1 * observed[1], torch.full((2,), 1e-4)]
    floor = 1e-6 * torch.cat(observed).norm()
    expected = 0.01 + 0.01 + float((replayed[2] / floor).square().sum())
    assert float(relative_l2(replayed, observed)) == pytest.approx(expected, rel=1e-4)


def test_even_grey_is_its_level_whatever_the_normalisation():
    seen, _ = target("leakscope:april-b?dim=32&depth=1", size=8, dtype=torch.float32)
    starts = []
    attack = ls.Optimisation(terms=(Weighted(term=Match(squared_l2)),), steps=1, init=EvenGrey(noise=0.0))
    attack(seen, generator=seeded(), callback=lambda p: starts.append(p.images()))
    torch.testing.assert_close(starts[0], torch.full_like(starts[0], 0.5))


def test_a_picture_is_encoded_where_the_search_is_over_coordinates():
    """Coordinates that are half of the normalised picture."""

    class Halved:
        def __init__(self, shape):
            self.shape = shape

        def __call__(self, free):
            return 2 * free

        def encode(self, inputs):
            return inputs / 2

    seen, _ = target("leakscope:april-b?dim=32&depth=1", size=8, dtype=torch.float32)
    starts = []
    attack = ls.Optimisation(
        terms=(Weighted(term=Match(squared_l2)),),
        steps=1,
        init=EvenGrey(noise=0.0),
        decode=lambda seen: Halved((seen.batch_size, *seen.input.shape)),
    )
    attack(seen, generator=seeded(), callback=lambda p: starts.append(p.images()))
    torch.testing.assert_close(starts[0], torch.full_like(starts[0], 0.5))


def test_deep_leakage_from_grey_with_layers_alike():
    seen, _ = target("leakscope:lenet-dlg", size=8, dtype=torch.float32)

    def at_the_start(**options):
        return ls.attack("idlg", steps=1, **options)(seen, generator=seeded()).trace[0][0]

    assert at_the_start(start="grey") < at_the_start()
    assert at_the_start(start="grey", relative=True) != at_the_start(start="grey")
