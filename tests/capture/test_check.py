"""A check infers what it can, confirms the right client, and explains the wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clients import photographs, small_model, trained

import leakscope as ls
from leakscope.capture import Update, check
from leakscope.client.fedavg import FedAvg
from leakscope.client.local_optimisers import Adam, Sgd


@pytest.fixture(scope="module")
def model() -> ls.VisionModel:
    return small_model()


def believed(steps: int = 1, lr: float = 0.05, mode: str = "train", **more: object) -> FedAvg:
    return FedAvg(steps=steps, optimiser=Sgd(lr=lr), mode=mode, share="weights", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_right_client_replays_to_rounding(model, mode, steps):
    report = check(
        trained(model, photographs(), mode=mode, steps=steps),
        model,
        batch=photographs(),
        client=believed(steps, mode=mode),
    )
    assert report.ok
    assert report.verified
    assert report.replay.error <= 1e-5
    assert report.inferred.mode == mode


def test_running_statistics_are_compared_too(model):
    update = trained(model, photographs())
    moved = dict(update.sent)
    moved["1.running_mean"] = moved["1.running_mean"] + 0.1
    report = check(replace(update, sent=moved), model, batch=photographs(), client=believed())
    assert not report.ok
    assert "running statistics" in " ".join(report.problems)


@pytest.mark.parametrize(
    ("client", "belief", "words"),
    [
        ({"mode": "train"}, believed(mode="eval"), "BatchNorm ran in train mode"),
        ({"mode": "eval"}, believed(mode="train"), "BatchNorm ran in eval mode"),
        ({"steps": 3}, believed(5), "the client took 3 steps"),
        ({"steps": 2, "mode": "eval"}, believed(1, mode="eval"), "the client took 2 steps"),
        ({"lr": 0.02}, believed(lr=0.1), "the learning rate is 0.02"),
        ({"steps": 3, "lr": 0.02}, believed(3, lr=0.1), "the learning rate is 0.02"),
        ({"steps": 3, "optimiser": "momentum"}, believed(3), "SGD with momentum 0.9"),
        ({"steps": 2, "optimiser": "adam", "lr": 0.003}, believed(2, lr=0.003), "the optimiser is Adam"),
        (
            {"steps": 2, "batch_size": 2, "order": [2, 3, 0, 1]},
            believed(2, batch_size=2),
            "the images came in the order",
        ),
        ({"steps": 2, "batch_size": 2}, believed(1), "the local batch size is 2"),
    ],
)
def test_a_wrong_belief_is_explained_not_passed(model, client, belief, words):
    report = check(trained(model, photographs(), **client), model, batch=photographs(), client=belief)
    assert not report.ok
    assert not report.verified
    assert report.replay.explained
    assert words in " ".join(report.problems)
    assert report.replay.best <= 1e-3 < report.replay.error


def test_what_nothing_explains_is_a_problem(model):
    others = ls.bundled_batch(["brick", "camera", "retina", "stairs"], size=16)
    report = check(trained(model, photographs()), model, batch=others, client=believed())
    assert not report.ok
    assert "no likely mistake explains it" in " ".join(report.problems)


def test_wrong_labels_are_noticed(model):
    held = replace(photographs(), labels=torch.tensor([5, 6, 7, 8]))
    assert not check(trained(model, photographs()), model, batch=held, client=believed()).ok


@pytest.mark.parametrize("steps", [1, 3])
def test_without_a_belief_the_images_tell(model, steps):
    report = check(trained(model, photographs(), steps=steps), model, batch=photographs())
    assert report.ok
    assert (report.inferred.mode, report.inferred.steps) == ("train", steps)
    assert report.client.optimiser.lr == pytest.approx(0.05, rel=1e-3)


def test_the_bound_on_the_learning_rate_holds(model):
    for lr, steps in ((0.05, 1), (0.2, 2)):
        travel = check(trained(model, photographs(), lr=lr, steps=steps), model).inferred.travel
        assert 0 < travel <= lr * steps * 1.0001


def test_the_first_step_of_adam_is_recognised(model):
    report = check(trained(model, photographs(), optimiser="adam", lr=0.002), model, batch=photographs())
    assert report.inferred.sign_like
    assert report.inferred.lr == pytest.approx(0.002, rel=0.01)
    assert isinstance(report.client.optimiser, Adam)
    assert report.ok


def test_what_the_framework_told_is_believed_and_compared(model):
    update = trained(model, photographs(), steps=2, lr=0.05, **{})
    told = replace(update, metadata={"lr": 0.05, "steps": 3})
    report = check(told, model)
    assert report.inferred.lr == 0.05
    assert any("told 3 local steps; BatchNorm counted 2" in note for note in report.notes)


def test_half_precision_is_seen(model):
    update = trained(model, photographs(), lr=1.0)
    halved = {n: v.half() if v.is_floating_point() else v for n, v in update.sent.items()}
    report = check(
        replace(update, sent=halved), model, batch=photographs(), client=replace(believed(lr=1.0), precision="fp16")
    )
    assert report.inferred.precision == "fp16"
    assert report.ok


def test_a_gradient_called_a_delta_is_told_by_its_sign(model):
    gradient = ls.FedSGD(mode="train").replay(model, photographs().images, photographs().labels)
    update = Update(kind="delta", sent={n: v.clone() for n, v in gradient.items()}, received=model.state_dict())
    report = check(update, model, batch=photographs(), client=believed())
    assert not report.ok
    assert "sign is reversed" in " ".join(report.problems)


def test_gradients_replay_as_fedsgd(model):
    gradient = ls.FedSGD(mode="train").replay(model, photographs().images, photographs().labels)
    update = Update(kind="gradient", sent=gradient, received=model.state_dict())
    assert check(update, model, batch=photographs(), client=ls.FedSGD(mode="train")).verified
    wrong = check(update, model, batch=photographs(), client=ls.FedSGD(mode="eval"))
    assert "BatchNorm ran in train mode" in " ".join(wrong.problems)
    clipped = replace(update, sent={n: 0.5 * v for n, v in gradient.items()})
    report = check(clipped, model, batch=photographs(), client=ls.FedSGD(mode="train"))
    assert "0.5 times as large" in " ".join(report.problems)
    with pytest.raises(ls.BadInput, match="FedSGD"):
        check(update, model, batch=photographs(), client=believed())


def test_nothing_moved_is_no_pass(model):
    state = model.state_dict()
    report = check(Update(kind="weights", sent=state, received=state), model, batch=photographs())
    assert not report.ok
    assert "Nothing moved" in report.problems[0]


def test_a_frozen_part_replays(model):
    update = trained(model, photographs())
    head = {n: v for n, v in update.sent.items() if n.startswith("7.")}
    report = check(replace(update, sent=head), model, batch=photographs(), client=believed())
    assert set(report.inferred.withheld) == {"0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias"}
    assert report.ok, report.problems


def test_the_model_comes_back_as_it_was(model):
    before = model.fingerprint()
    check(trained(model, photographs()), model, batch=photographs(), client=believed(3, mode="eval"))
    assert model.fingerprint() == before
    assert not model.module.training or all(m.training for m in model.module.modules())
