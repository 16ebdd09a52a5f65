"""The client's side: what it does with its images, and the one place where they turn into something shared."""

from leakscope.client import threats
from leakscope.client.aggregation import SecureAggregation, joined
from leakscope.client.augmentation import Augmentation, Augmented, trained_on
from leakscope.client.build import client_from
from leakscope.client.fedavg import FedAvg
from leakscope.client.fedsgd import FedSGD
from leakscope.client.local_optimisers import Adam, Sgd, adamw
from leakscope.client.observe import observe
from leakscope.client.registry import DEFENCES, defence, defence_from, defence_from_text, register_defence
from leakscope.client.split import Split

__all__ = [
    "DEFENCES",
    "Adam",
    "Augmentation",
    "Augmented",
    "FedAvg",
    "FedSGD",
    "SecureAggregation",
    "Sgd",
    "Split",
    "adamw",
    "client_from",
    "defence",
    "defence_from",
    "defence_from_text",
    "joined",
    "observe",
    "register_defence",
    "threats",
    "trained_on",
]
