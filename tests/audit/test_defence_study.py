"""The price of a defence, measured, and the table of defences × attackers."""

import math
from dataclasses import replace

import pytest
import torch

import leakscope as ls
from leakscope.audit.studies_defences import NO_DEFENCE, Price, defence_table
from leakscope.audit.utility import Budget, crops, encoded_bytes, utility
from leakscope.client import defence

SMALL = Budget(rounds=25, batch_size=16, rates=(0.01, 0.1))


@pytest.fixture(scope="module")
def mlp():
    return ls.load_model("leakscope:mlp?hidden=32", num_classes=10, image_size=8, seed=0)


def price(model, *chain, seed=0):
    return utility(model, chain, budget=SMALL, generator=torch.Generator().manual_seed(seed))


def test_crops_are_classes_of_photographs():
    train, test = crops(8)
    assert (len(train), len(test)) == (400, 200)
    assert train.labels.bincount().tolist() == [40] * 10
    assert not any(torch.equal(test.images[0], image) for image in train.images[train.labels != 0])


def test_nothing_costs_nothing(mlp):
    found = price(mlp)
    assert found.accuracy == found.plain_accuracy
    assert found.accuracy > 0.5  # chance is 0.1
    assert (found.change, found.bytes_ratio, found.epsilon) == (0, 1, None)
    again = price(mlp)
    assert again.accuracy == found.accuracy


def test_a_defence_that_destroys_the_update_costs_accuracy(mlp):
    before = mlp.fingerprint()
    found = price(mlp, defence("gaussian-noise", scale=50.0))
    assert found.change < -0.2
    assert mlp.fingerprint() == before


def test_bytes_and_epsilon(mlp):
    assert price(mlp, defence("sign")).bytes_ratio == pytest.approx(1 / 32, rel=0.05)
    assert price(mlp, defence("withhold", what="all-but-head")).bytes_ratio < 0.1
    pytest.importorskip("opacus", reason="opacus comes with leakscope[fl]")
    private = defence("dp-sgd", noise_multiplier=1.0)
    found = price(mlp, private)
    assert found.epsilon == pytest.approx(private.epsilon(sample_rate=16 / 400, steps=25))
    both = {"w": torch.tensor([0.0, 0.0, 0.0, 2.0])}
    assert encoded_bytes([defence("top-k"), defence("gaussian-noise")], both) == 8
    assert encoded_bytes([], both) == 16


def test_local_steps_and_company_train_too(mlp):
    for made in (defence("more-local-steps", steps=3), defence("secure-aggregation", clients=2), defence("mixup")):
        assert price(mlp, made).accuracy > 0.3, made


def test_the_table(mlp):
    model = ls.load_model("leakscope:mlp?hidden=32&activation=tanh", num_classes=10, image_size=8, seed=0)
    batch = ls.bundled_batch(["cat"], size=8)
    chains = {
        "sparse": [defence("random-sparsification", share=0.5)],
        "crowd": [defence("larger-batch", size=3)],
        "head": [defence("withhold", what="all-but-head")],
    }
    attacks = {"ig": ls.attack("inverting-gradients", steps=30), "layer": ls.attack("linear-layer")}
    told = []
    rows = defence_table(
        model,
        batch,
        chains,
        attacks,
        others=ls.bundled_batch(["coffee", "temple"], size=8),
        rounds=12,
        price=Price(model=mlp, budget=replace(SMALL, rounds=3)),
        callback=told.append,
    )
    assert rows == told
    found = {(row.defence, row.attacker, row.attack): row for row in rows}
    assert len(found) == 2 + 3 * 2 * 2
    assert (NO_DEFENCE, "adaptive", "ig") not in found
    assert found[NO_DEFENCE, "naive", "layer"].worst > 60
    # Twelve rounds fill the masks up, and the closed form is exact again; a single masked round is not.
    assert found["sparse", "adaptive", "layer"].worst > found["sparse", "naive", "layer"].worst + 20
    crowd = found["crowd", "naive", "ig"]
    assert len(crowd.psnr) == 1
    refused = found["head", "naive", "layer"]
    assert refused.psnr == ()
    assert refused.reason
    assert math.isinf(refused.worst)
    assert all(row.utility is not None and row.bytes_sent > 0 for row in rows)
    assert found["sparse", "naive", "ig"].bytes_sent < found[NO_DEFENCE, "naive", "ig"].bytes_sent * 1.05
