"""The gate lets through only what an attempt within its budget did not open, and fails closed in every other case."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import leakscope as ls
from leakscope.capture import Update, update_from_states
from leakscope.client.fedavg import FedAvg
from leakscope.client.local_optimisers import Sgd
from leakscope.gate import Decision, Policy, Reason, gate

NAMES = ["astronaut", "cat", "coffee", "flower"]
CLIENT = FedAvg(steps=1, optimiser=Sgd(lr=0.05), mode="train", share="weights")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def update_of(model: ls.VisionModel, batch: ls.Batch, client: FedAvg = CLIENT) -> Update:
    start = {name: value.clone() for name, value in model.state_dict().items()}
    moved = replace(client, share_buffers=True).replay(model, batch.images, batch.labels)
    parameters = {name for name, _ in model.named_parameters()}
    after = {n: (start[n] + moved[n] if n in parameters else moved[n]) if n in moved else start[n] for n in start}
    return update_from_states(start, after)


@pytest.fixture(scope="module")
def open_model() -> ls.VisionModel:
    return ls.load_model("leakscope:mlp?hidden=16", image_size=16, num_classes=10, seed=0)


@pytest.fixture(scope="module")
def closed_model() -> ls.VisionModel:
    return ls.load_model("leakscope:convnet64?width=2", image_size=16, num_classes=10, seed=0)


def test_an_image_that_comes_out_in_closed_form_is_withheld(open_model):
    batch = ls.bundled_batch(NAMES[:1], size=16)
    patient = Policy(seconds=600.0)
    decision = gate(update_of(open_model, batch), open_model, batch, client=CLIENT, policy=patient, generator=seeded())
    assert not decision.send
    assert decision.reason is Reason.LEAKS
    assert decision.by in ("linear-layer", "exact-git")
    assert (decision.exposed, decision.images) == (1, 1)


def test_images_that_come_out_of_a_short_attack_are_withheld():
    model = ls.load_model("leakscope:mlp?hidden=64&activation=tanh", image_size=16, num_classes=10, seed=0)
    batch = ls.bundled_batch(NAMES[:2], size=16)
    policy = Policy(steps=200, seconds=600.0)
    decision = gate(update_of(model, batch), model, batch, client=CLIENT, policy=policy, generator=seeded())
    assert decision.reason is Reason.LEAKS
    assert decision.by == "inverting-gradients"
    assert decision.exposed >= 1


def test_what_holds_out_is_sent(closed_model):
    batch = ls.bundled_batch(NAMES, size=16)
    decision = gate(
        update_of(closed_model, batch),
        closed_model,
        batch,
        client=CLIENT,
        policy=Policy(steps=5, seconds=600.0),
        generator=seeded(),
    )
    assert decision.send
    assert decision.reason is Reason.PASSED
    assert decision.tried[-1] == "inverting-gradients"
    assert decision.steps == 5


def test_the_policy_decides(closed_model):
    """The same update and attack: a stricter threshold withholds it."""
    batch = ls.bundled_batch(NAMES, size=16)
    update = update_of(closed_model, batch)
    for threshold, sent in ((60.0, True), (1.0, False)):
        policy = Policy(steps=5, seconds=600.0, thresholds={"psnr": threshold})
        decision = gate(update, closed_model, batch, client=CLIENT, policy=policy, generator=seeded())
        assert decision.send is sent


def test_a_metric_that_falls_is_read_the_right_way(closed_model):
    batch = ls.bundled_batch(NAMES, size=16)
    policy = Policy(steps=5, seconds=600.0, thresholds={"mse": 10.0})
    decision = gate(
        update_of(closed_model, batch), closed_model, batch, client=CLIENT, policy=policy, generator=seeded()
    )
    assert decision.reason is Reason.LEAKS


def withheld(decision: Decision) -> Reason:
    assert not decision.send
    return decision.reason


class TestFailsClosed:
    """Every way in which the gate can fail to find out."""

    @pytest.fixture
    def batch(self) -> ls.Batch:
        return ls.bundled_batch(NAMES, size=16)

    def run(self, update: Update, model: ls.VisionModel, batch: ls.Batch, **policy: object) -> Decision:
        chosen = Policy(**{"steps": 5, "seconds": 600.0, **policy})  # type: ignore[arg-type]
        return gate(update, model, batch, client=CLIENT, policy=chosen, generator=seeded())

    def test_the_client_is_not_understood(self, closed_model, batch):
        other = replace(CLIENT, optimiser=Sgd(lr=0.2))
        assert withheld(self.run(update_of(closed_model, batch, other), closed_model, batch)) is Reason.UNVERIFIED

    def test_noise_has_to_be_allowed_for(self, closed_model, batch):
        update = update_of(closed_model, batch)
        generator = seeded()
        noisy = {
            name: value + 1e-3 * torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
            for name, value in update.sent.items()
        }
        noised = replace(update, sent=noisy)
        assert withheld(self.run(noised, closed_model, batch)) is Reason.UNVERIFIED
        assert self.run(noised, closed_model, batch, replay=10.0).send

    def test_other_images_than_were_trained_on(self, closed_model, batch):
        update = update_of(closed_model, ls.bundled_batch(["brick", "brain", "stairs", "retina"], size=16))
        assert withheld(self.run(update, closed_model, batch)) is Reason.UNVERIFIED

    def test_statistics_of_other_images(self, closed_model, batch):
        update = update_of(closed_model, batch)
        shifted = {n: v + 0.5 if n.endswith("running_mean") else v for n, v in update.sent.items()}
        decision = self.run(replace(update, sent=shifted), closed_model, batch)
        assert withheld(decision) is Reason.UNVERIFIED

    def test_broken_values(self, closed_model, batch):
        update = update_of(closed_model, batch)
        name = next(iter(update.sent))
        broken = replace(update, sent={**update.sent, name: torch.full_like(update.sent[name], float("nan"))})
        assert withheld(self.run(broken, closed_model, batch)) is Reason.UNVERIFIED

    def test_images_of_another_size(self, closed_model, batch):
        wrong = ls.bundled_batch(NAMES, size=8)
        assert withheld(self.run(update_of(closed_model, batch), closed_model, wrong)) is Reason.FAILED

    def test_no_time(self, closed_model, batch):
        decision = self.run(update_of(closed_model, batch), closed_model, batch, seconds=1e-9)
        assert withheld(decision) is Reason.OUT_OF_TIME

    def test_an_attack_that_raises(self, closed_model, batch, monkeypatch):
        def broken(name: str, **_: object) -> object:
            raise RuntimeError("pixels: 0.123")

        monkeypatch.setattr("leakscope.gate.decide.attack", broken)
        decision = self.run(update_of(closed_model, batch), closed_model, batch)
        assert withheld(decision) is Reason.FAILED
        assert decision.detail == "RuntimeError"  # the message stays out: it may quote values

    def test_an_attack_that_ends_early(self, closed_model, batch, monkeypatch):
        from leakscope.attacks import attack

        def hasty(name: str, **options: object) -> object:
            return attack(name, **({"steps": 2} if "steps" in options else {}))

        monkeypatch.setattr("leakscope.gate.decide.attack", hasty)
        assert withheld(self.run(update_of(closed_model, batch), closed_model, batch)) is Reason.FAILED

    def test_a_metric_that_is_not_defined(self, closed_model, batch):
        decision = self.run(update_of(closed_model, batch), closed_model, batch, thresholds={"ms-ssim": 0.5})
        assert withheld(decision) is Reason.FAILED

    def test_an_interrupt_is_no_pass(self, closed_model, batch, monkeypatch):
        def interrupted(*_: object, **__: object) -> object:
            raise KeyboardInterrupt

        monkeypatch.setattr("leakscope.gate.decide.check", interrupted)
        with pytest.raises(KeyboardInterrupt):
            self.run(update_of(closed_model, batch), closed_model, batch)


def test_a_decision_holds_names_counts_and_seconds_only(open_model):
    batch = ls.bundled_batch(NAMES[:1], size=16)
    patient = Policy(seconds=600.0)
    decision = gate(update_of(open_model, batch), open_model, batch, client=CLIENT, policy=patient, generator=seeded())
    kept = json.loads(json.dumps(decision.to_json()))
    assert set(kept) == {"send", "reason", "detail", "by", "exposed", "images", "tried", "steps", "seconds"}
    assert not any(isinstance(value, dict) for value in kept.values())
    assert [key for key, value in kept.items() if isinstance(value, float)] == ["seconds"]
    assert not any(name in json.dumps(kept) for name in batch.names)


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds": {}},
        {"thresholds": {"psnr": float("nan")}},
        {"thresholds": {"psrn": 18.0}},
        {"steps": 0},
        {"seconds": 0.0},
        {"seconds": float("inf")},
        {"replay": 0.0},
        {"replay": float("nan")},
    ],
)
def test_a_policy_that_would_decide_nothing_is_refused(options):
    with pytest.raises(ls.BadInput):
        Policy(**options)
