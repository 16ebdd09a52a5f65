# The public names, spelled out, and where each lives. The package loads them from here, on first use.

from .attacks import ATTACKS, Checkpoint, Optimisation, Stop, attack, from_attack, recover_labels, register_attack
from .attacks.analytic.scan import analytic_scan
from .attacks.learned.inverter import Inverter
from .attacks.learned.learned import LearnedAttack
from .attacks.learned.load import load_inverter
from .client import (
    Adam,
    Augmentation,
    Augmented,
    FedAvg,
    FedSGD,
    SecureAggregation,
    Sgd,
    Split,
    adamw,
    client_from,
    joined,
    observe,
    threats,
    trained_on,
)
from .client.registry import DEFENCES, defence, register_defence
from .errors import BadInput, LeakscopeError, MissingExtra, MissingKnowledge, NotApplicable, UnknownName
from .metrics import METRICS, Metric, Scores, metric, score
from .models import MODELS, Anatomy, VisionModel, load_model
from .testing.bundled import bundled_batch, bundled_names
from .types import (
    Attack,
    Batch,
    ClientProtocol,
    Defence,
    InputSpec,
    Knows,
    Observation,
    Outcome,
    Progress,
    Reconstruction,
    Signal,
    Status,
    ThreatModel,
)

__version__: str

__all__ = [
    "ATTACKS",
    "DEFENCES",
    "METRICS",
    "MODELS",
    "Adam",
    "Anatomy",
    "Attack",
    "Augmentation",
    "Augmented",
    "BadInput",
    "Batch",
    "Checkpoint",
    "ClientProtocol",
    "Defence",
    "FedAvg",
    "FedSGD",
    "InputSpec",
    "Inverter",
    "Knows",
    "LeakscopeError",
    "LearnedAttack",
    "Metric",
    "MissingExtra",
    "MissingKnowledge",
    "NotApplicable",
    "Observation",
    "Optimisation",
    "Outcome",
    "Progress",
    "Reconstruction",
    "Scores",
    "SecureAggregation",
    "Sgd",
    "Signal",
    "Split",
    "Status",
    "Stop",
    "ThreatModel",
    "UnknownName",
    "VisionModel",
    "adamw",
    "analytic_scan",
    "attack",
    "bundled_batch",
    "bundled_names",
    "client_from",
    "defence",
    "from_attack",
    "joined",
    "load_inverter",
    "load_model",
    "metric",
    "observe",
    "recover_labels",
    "register_attack",
    "register_defence",
    "score",
    "threats",
    "trained_on",
]
