"""What the server takes the client to do is not what the client does, unless it knows."""

import pytest
import torch
from local_training import seeded, small_batch, small_model

import leakscope as ls
from leakscope.types import Knows

BLIND = ls.ThreatModel(name="blind server", knows=frozenset({Knows.BATCH_SIZE}))
TRUTH = ls.FedAvg(steps=4, optimiser=ls.Sgd(lr=0.05))
GUESS = ls.FedAvg(steps=1, optimiser=ls.Sgd(lr=0.2))


def test_a_server_that_knows_replays_the_truth():
    seen = ls.observe(small_model(), small_batch(), protocol=TRUTH, generator=seeded())
    assert seen.protocol == TRUTH


@pytest.mark.parametrize(
    "client",
    [
        TRUTH,
        ls.Augmented(client=TRUTH, augmentation=ls.Augmentation()),
        ls.SecureAggregation(client=TRUTH, sizes=(2, 2)),
    ],
)
def test_a_server_that_does_not_know_must_guess(client):
    with pytest.raises(ls.BadInput, match=r"'blind server' hides.*learning rate.*belief="):
        ls.observe(small_model(), small_batch(), protocol=client, threat=BLIND, generator=seeded())


def test_only_the_guess_is_handed_over():
    model, batch = small_model(), small_batch()
    seen = ls.observe(model, batch, protocol=TRUTH, belief=GUESS, threat=BLIND, generator=seeded())
    assert seen.protocol == GUESS
    true = TRUTH.replay(model, batch.images, batch.labels)
    assert all(torch.equal(seen.signal[name], value) for name, value in true.items())
    guessed = GUESS.replay(model, batch.images, batch.labels)
    assert not torch.equal(seen.signal["head.weight"], guessed["head.weight"])


def test_a_gradient_has_nothing_to_guess():
    seen = ls.observe(small_model(), small_batch(), protocol=ls.FedSGD(), threat=BLIND, generator=seeded())
    assert seen.protocol == ls.FedSGD()


def test_a_known_protocol_may_be_doubted_on_purpose():
    seen = ls.observe(small_model(), small_batch(), protocol=TRUTH, belief=GUESS, generator=seeded())
    assert seen.protocol == GUESS
