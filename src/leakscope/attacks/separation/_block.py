"""The embedding and the first block of a pre-norm transformer: its weights and gradients by meaning, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn

from leakscope.attacks.analytic._one_image import gradient, parameter
from leakscope.attacks.analytic.patch_embedding import linear_patch_embedding
from leakscope.errors import NotApplicable
from leakscope.models import VisionModel
from leakscope.types import Observation

__all__ = ["FirstBlock", "Linear", "Norm", "centred", "first_block"]

_NORMS: Final = ("LayerNorm", "LayerNormFp32")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """x ↦ W x + b with ∂L/∂W and ∂L/∂b; the bias parts are ``None`` where there is none, or none was sent."""

    weight: Tensor
    bias: Tensor | None
    gradient: Tensor
    bias_gradient: Tensor | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """z ↦ γ ⊙ ẑ + β with ẑ = Cz / √(|Cz|²/D + ε), C the centring; and ∂L/∂β."""

    gamma: Tensor
    beta: Tensor
    epsilon: float
    beta_gradient: Tensor

    def undo(self, layer: Linear) -> tuple[Tensor, Tensor | None]:
        """Σ_t ε_t ẑ_tᵀ from the layer behind this norm, whose gradient is Σ_t ε_t (γ ⊙ ẑ_t + β)ᵀ.

        Without the layer's bias gradient Σ_t ε_t, a multiple of β/γ (the second value) is left in every row.
        """
        rows, beta = layer.gradient, None
        if bool(self.beta.any()):
            if layer.bias_gradient is None:
                beta = (self.beta / self.gamma)[:, None]
            else:
                rows = rows - torch.outer(layer.bias_gradient, self.beta)
        return rows / self.gamma, beta

    def back(self, layer: Linear, outgoing: Tensor) -> Tensor:
        """C(γ ⊙ Wᵀ ε) for columns ε: the part of the norm's Jacobian that is linear."""
        return centred(self.gamma[:, None] * (layer.weight.mT @ outgoing))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBlock:
    """x ↦ x + proj(attention(qkv(norm x))), then y ↦ y + second(act(first(norm y))).

    ``embedding`` (D, M) turns patches into tokens, ``table`` (D, P) is what is added to them (position and bias),
    ``prefix`` (D, K) are the class and register tokens with their positions.
    """

    embedding: Tensor
    table: Tensor
    prefix: Tensor
    heads: int
    norm: Norm
    qkv: Linear
    proj: Linear
    second_norm: Norm
    first: Linear
    second: Linear

    @property
    def width(self) -> int:
        return self.embedding.shape[0]


def centred(columns: Tensor) -> Tensor:
    """C z for each column z: less its mean."""
    return columns - columns.mean(0, keepdim=True)


def first_block(observation: Observation) -> FirstBlock:
    """Everything about the first block, or :class:`NotApplicable` with what is missing or of another kind."""
    model, anatomy = observation.model, observation.model.anatomy
    patches = linear_patch_embedding(anatomy)
    position, attention = anatomy.position_embedding, anatomy.first_attention
    if position is None or attention is None or attention.norm is None or not anatomy.blocks:
        raise NotApplicable(
            "This needs a pre-norm transformer: an absolute position table, then blocks that begin with a norm and a "
            "self-attention. This model is not known to be one."
        )
    if position.norm_after is not None:
        raise NotApplicable(f"'{position.norm_after}' normalises the tokens before the first block.")
    if position.prefix_in_table not in (0, position.prefix_tokens):
        raise NotApplicable("Only some of the class and register tokens have a row in the position table.")
    if not attention.fused:
        raise NotApplicable("The first attention has separate weights for q, k and v; only a fused one is known here.")
    block = anatomy.blocks[0]
    inner = {n: m for n, m in model.named_modules() if n.startswith(f"{block}.")}
    linear = [n for n, m in inner.items() if isinstance(m, nn.Linear) and f"{n}.weight" not in attention.weights]
    proj = [n for n in linear if n.startswith(f"{attention.module}.")]
    mlp = [n for n in linear if n not in proj]
    norms = [n for n in inner if anatomy.norms.get(n) in _NORMS and n != attention.norm.module]
    known = {*attention.weights, *attention.biases}
    known |= {f"{n}.{p}" for n in (*linear, *norms, attention.norm.module) for p in ("weight", "bias")}
    further = [n for n, _ in model.named_parameters() if n.startswith(f"{block}.") and n not in known]
    if (len(proj), len(mlp), len(norms)) != (1, 2, 1) or further or anatomy.norms[attention.norm.module] not in _NORMS:
        raise NotApplicable(
            f"The first block '{block}' is not norm, attention, norm and an MLP of two layers and nothing else"
            + (f": it has '{further[0]}' besides." if further else ".")
        )
    weight = parameter(model, patches.weight).flatten(1)
    table = parameter(model, position.name).reshape(-1, len(weight))
    tokens = [parameter(model, name).reshape(-1, len(weight)) for name in anatomy.prefix_tokens]
    prefix = torch.cat(tokens) if tokens else table[:0]
    if len(prefix) != position.prefix_tokens:
        raise NotApplicable(f"{position.prefix_tokens} tokens precede the patches; {len(prefix)} of them are known.")
    bias = 0 if patches.bias is None else parameter(model, patches.bias)
    cut = position.prefix_in_table
    return FirstBlock(
        embedding=weight,
        table=(table[cut:] + bias).mT,
        prefix=(prefix + (table[:cut] if cut else 0)).mT,
        heads=attention.heads,
        norm=_norm(observation, attention.norm.module),
        qkv=_linear(observation, attention.weights[0], attention.biases[0] if attention.biases else None),
        proj=_layer(observation, proj[0]),
        second_norm=_norm(observation, norms[0]),
        first=_layer(observation, mlp[0]),
        second=_layer(observation, mlp[1]),
    )


def _layer(observation: Observation, module: str) -> Linear:
    bias = f"{module}.bias"
    return _linear(observation, f"{module}.weight", bias if _has(observation.model, bias) else None)


def _linear(observation: Observation, weight: str, bias: str | None) -> Linear:
    return Linear(
        weight=parameter(observation.model, weight),
        bias=None if bias is None else parameter(observation.model, bias),
        gradient=gradient(observation, weight, "the first block"),
        bias_gradient=None if bias is None else gradient(observation, bias, "the first block"),
    )


def _norm(observation: Observation, module: str) -> Norm:
    model = observation.model
    if not (_has(model, f"{module}.weight") and _has(model, f"{module}.bias")):
        raise NotApplicable(f"The norm '{module}' has no learnable scale and shift, whose gradient is needed.")
    gamma = parameter(model, f"{module}.weight")
    if float(gamma.abs().min()) < 1e-3 * float(gamma.abs().max()):
        raise NotApplicable(f"The norm '{module}' scales some features to nothing: they cannot be traced back.")
    return Norm(
        gamma=gamma,
        beta=parameter(model, f"{module}.bias"),
        epsilon=float(getattr(model.module.get_submodule(module), "eps", 0.0)),
        beta_gradient=gradient(observation, f"{module}.bias", "the first block's norm"),
    )


def _has(model: VisionModel, name: str) -> bool:
    return any(n == name for n, _ in model.named_parameters())
