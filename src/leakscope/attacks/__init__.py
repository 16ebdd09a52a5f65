"""The server's side: attacks that see an observation and nothing else."""

from leakscope.attacks.labels import recover_labels
from leakscope.attacks.optimisation import Checkpoint, Optimisation, Stop
from leakscope.attacks.registry import ATTACKS, Leaky, attack, known_to_leak, register_attack
from leakscope.attacks.starts import from_attack

__all__ = [
    "ATTACKS",
    "Checkpoint",
    "Leaky",
    "Optimisation",
    "Stop",
    "attack",
    "from_attack",
    "known_to_leak",
    "recover_labels",
    "register_attack",
]
