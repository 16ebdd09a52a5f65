"""What each parameter of a model means, by name, so that no attack ever indexes parameters by position.

An :class:`Anatomy` is found automatically (:mod:`leakscope.models.families`); whatever could not be determined is
``None`` or empty and said in ``notes``. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Anatomy",
    "Attention",
    "Classifier",
    "Layer",
    "PatchEmbedding",
    "PositionEmbedding",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The parameter names of one linear or convolutional layer, and the name of its module."""

    weight: str
    bias: str | None
    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """The linear layer whose output is the logits: logits = scale · (W a + b), W of shape (K, D).

    ``scale`` differs from 1 only where heads are averaged (a distilled DeiT: ½ each, the other head in ``others``).
    """

    weight: str
    bias: str | None
    module: str
    scale: float = 1.0
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchEmbedding:
    """The layer that turns pixels into tokens: weight (D, C, p, p), one token per patch, in row-major order.

    ``linear`` says that nothing stands between pixels and tokens but this layer: token = W·patch + b, patches do not
    overlap. A norm after it, overlapping patches or a convolutional stem make it ``False``.
    """

    weight: str
    bias: str | None
    module: str
    patch: tuple[int, int]
    grid: tuple[int, int]
    linear: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionEmbedding:
    """The absolute position table (…, N, D) that is added to the tokens.

    Its first ``prefix_in_table`` rows belong to class or register tokens, the rest to patches in row-major order.
    The sequence itself starts with ``prefix_tokens`` such tokens. Not ``learnable``: it has no gradient to share.
    ``norm_after`` names a norm between this sum and the first block (CLIP's pre-norm), which blocks do not have.
    """

    name: str
    learnable: bool
    prefix_in_table: int
    prefix_tokens: int
    norm_after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The first self-attention: one fused weight (3D, D) in the order q, k, v, or three separate ones, in that order.

    ``norm`` is the layer norm right before it (``None``: tokens go in as they are).
    """

    module: str
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    heads: int
    norm: Layer | None

    @property
    def fused(self) -> bool:
        """Whether q, k and v share one weight matrix."""
        return len(self.weights) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Meaning → names. ``notes`` are sentences for people about what could not be determined.

    ``blocks`` are module names in order of execution; ``norms`` maps module names to kinds (``"BatchNorm2d"``);
    ``stochastic`` lists modules that draw random numbers in train mode; ``mixes_samples`` those whose output for one
    image depends on the other images of the batch in train mode (``""``: the module as a whole, by its behaviour);
    ``mixes_in_evaluation`` says that even evaluation mode does so.
    """

    family: str = "unknown"
    classifier: Classifier | None = None
    first_layer: Layer | None = None
    patch_embedding: PatchEmbedding | None = None
    position_embedding: PositionEmbedding | None = None
    prefix_tokens: tuple[str, ...] = ()
    first_attention: Attention | None = None
    blocks: tuple[str, ...] = ()
    norms: Mapping[str, str] = field(default_factory=dict)
    stochastic: tuple[str, ...] = ()
    mixes_samples: tuple[str, ...] = ()
    mixes_in_evaluation: bool = False
    notes: tuple[str, ...] = ()
