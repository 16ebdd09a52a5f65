"""Clients from plain data."""

import pytest

import leakscope as ls
from leakscope.client import client_from


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ls.FedSGD()),
        ({"type": "fedsgd", "mode": "train", "share_buffers": True}, ls.FedSGD(mode="train", share_buffers=True)),
        (
            {"type": "fedavg", "steps": 5, "batch_size": 4, "optimiser": "sgd", "lr": 0.2, "mode": "train"},
            ls.FedAvg(steps=5, batch_size=4, optimiser=ls.Sgd(lr=0.2), mode="train"),
        ),
        ({"type": "fedavg", "epochs": 2, "momentum": 0.9}, ls.FedAvg(epochs=2, optimiser=ls.Sgd(momentum=0.9))),
        ({"type": "fedavg", "steps": 1, "optimiser": "adamw", "lr": 1}, ls.FedAvg(steps=1, optimiser=ls.adamw(lr=1.0))),
        (
            {"type": "fedavg", "steps": 1, "optimiser": "adam", "betas": [0.8, 0.9]},
            ls.FedAvg(steps=1, optimiser=ls.Adam(betas=(0.8, 0.9))),
        ),
        ({"trainable": ["head.*"]}, ls.FedSGD(trainable=("head.*",))),
        ({"type": "split", "cut": "layer1", "precision": "fp16"}, ls.Split(cut="layer1", precision="fp16")),
        (
            {"augmentation": {"flip": 1, "pad": 2}},
            ls.Augmented(client=ls.FedSGD(), augmentation=ls.Augmentation(flip=1.0, pad=2)),
        ),
        (
            {"aggregation": {"sizes": [2, 3], "weighting": "sum"}},
            ls.SecureAggregation(client=ls.FedSGD(), sizes=(2, 3), weighting="sum"),
        ),
    ],
)
def test_settings_make_the_client(settings, expected):
    assert client_from(settings) == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"type": "fedagv"}, "Did you mean 'fedavg'"),
        ({"type": 3}, "Unknown client '3'"),
        ({"type": ["fedavg"]}, "Unknown client"),
        ({"type": "fedavg", "steps": 1, "optimiser": {}}, "Unknown optimiser"),
        ({"type": "fedavg", "stps": 1}, "Did you mean 'steps'"),
        ({"type": "fedavg", "steps": 1, "optimiser": "sdg"}, "Did you mean 'sgd'"),
        ({"type": "fedavg", "steps": 1, "optimiser": "adam", "momentum": 0.9}, "'momentum' is no option of adam"),
        ({"type": "fedavg", "steps": 1, "decoupled": True}, "Unknown option"),
        ({"type": "fedavg", "steps": True}, "whole number"),
        ({"type": "fedavg", "steps": 1.5}, "whole number"),
        ({"type": "fedavg", "steps": 1, "lr": "fast"}, "'lr' of sgd is 'fast'; it must be a number"),
        ({"type": "fedavg", "steps": 1, "lr": -1}, "lr is -1"),
        ({"type": "fedavg"}, "neither was given"),
        ({"type": "split"}, "needs cut"),
        ({"mode": "training"}, "'mode' of a fedsgd client is 'training'"),
        ({"trainable": "head"}, "a list"),
        ({"lr": 0.1}, "Unknown option of a fedsgd client 'lr'"),
        ({"augmentation": 3}, "a table of options"),
        ({"augmentation": {"flp": 1}}, "Did you mean 'flip'"),
        ({"aggregation": {}}, "needs sizes"),
        ({"aggregation": {"sizes": [1], "client": 3}}, "Unknown option"),
    ],
)
def test_anything_else_is_refused(settings, words):
    with pytest.raises(ls.BadInput, match=words):
        client_from(settings)
