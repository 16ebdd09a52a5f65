# The public names, spelled out, and where each lives. The package loads them from here, on first use.

from .attacks import ATTACKS, Checkpoint, Optimisation, Stop, attack, recover_labels, register_attack
from .attacks.analytic.scan import analytic_scan
from .client import FedSGD, observe, threats
from .errors import BadInput, LeakscopeError, MissingExtra, MissingKnowledge, NotApplicable, UnknownName
from .metrics import METRICS, Metric, Scores, metric, score
from .models import MODELS, Anatomy, VisionModel, load_model
from .testing.bundled import bundled_batch, bundled_names
from .types import (
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

__version__: str

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
    "analytic_scan",
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
