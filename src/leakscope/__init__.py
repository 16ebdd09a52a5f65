"""leakscope: what could the other side see of my images, from what I send?

The way through, left to right::

    model + private batch ──observe──▶ Observation ──attack──▶ Reconstruction ──score──▶ Scores
"""

from leakscope.attacks import ATTACKS, Checkpoint, Optimisation, Stop, attack, recover_labels, register_attack
from leakscope.client import FedSGD, observe, threats
from leakscope.errors import BadInput, LeakscopeError, MissingExtra, MissingKnowledge, NotApplicable, UnknownName
from leakscope.metrics import METRICS, Metric, Scores, metric, score
from leakscope.models import MODELS, Anatomy, VisionModel, load_model
from leakscope.testing.bundled import bundled_batch, bundled_names
from leakscope.types import (
    Attack,
    Batch,
    ClientProtocol,
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

__version__ = "0.1.0"

__all__ = [
    "ATTACKS",
    "METRICS",
    "MODELS",
    "Anatomy",
    "Attack",
    "BadInput",
    "Batch",
    "Checkpoint",
    "ClientProtocol",
    "FedSGD",
    "InputSpec",
    "Knows",
    "LeakscopeError",
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
    "Signal",
    "Status",
    "Stop",
    "ThreatModel",
    "UnknownName",
    "VisionModel",
    "attack",
    "bundled_batch",
    "bundled_names",
    "load_model",
    "metric",
    "observe",
    "recover_labels",
    "register_attack",
    "score",
    "threats",
]
