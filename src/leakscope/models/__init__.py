"""Models: one view of any classifier, what its parameters mean, and one loader by name."""

from leakscope._torchvision_ops import ensure as _ensure

_ensure()  # before anything can import torchvision or timm

from leakscope.models.anatomy import (  # noqa: E402
    Anatomy,
    Attention,
    Classifier,
    Layer,
    PatchEmbedding,
    PositionEmbedding,
)
from leakscope.models.blueprint import MODELS, list_models, model  # noqa: E402
from leakscope.models.describe import describe  # noqa: E402
from leakscope.models.load import load_model  # noqa: E402
from leakscope.models.vision_model import VisionModel  # noqa: E402

__all__ = [
    "MODELS",
    "Anatomy",
    "Attention",
    "Classifier",
    "Layer",
    "PatchEmbedding",
    "PositionEmbedding",
    "VisionModel",
    "describe",
    "list_models",
    "load_model",
    "model",
]
