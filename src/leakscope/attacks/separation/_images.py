"""Tokens into images: which tokens of different positions saw each other in the first attention; then the labels.

The gradient of a query is a sum over the keys of its own image only: in each head, with logits l_ts and
g_ts = (Wᵀ_proj r_t)·v_s,

    √d Z_t ∂L/∂q_t = Σ_s m_s e^(l_ts) (g_ts − ḡ_t) k_s,    Z_t = Σ_s m_s e^(l_ts),    ḡ_t = Σ_s m_s e^(l_ts) g_ts / Z_t,

with m_s = 1 for the tokens of t's image and 0 for the others. All but m is known for all tokens, and with Z and ḡ from
the last m (at first: every token counts 1/B) the equations of all heads are linear in it.
"""

from __future__ import annotations

from typing import Final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakscope.attacks.separation._block import FirstBlock, centred
from leakscope.attacks.separation._forms import Forms
from leakscope.errors import NotApplicable
from leakscope.types import Observation

__all__ = ["group", "labels_of"]

_ROUNDS: Final = 3


def group(block: FirstBlock, forms: Forms, a: Tensor, images: int) -> tuple[Tensor, float]:
    """The columns of ``a`` by image, (B, P), and how clearly they belong together: 1 at best, 1/B at worst."""
    together = _membership(block, forms, a, images)
    together = together + together.mT
    count = len(together) // images
    blocks = together.reshape(count, images, count, images)
    member = torch.arange(images).repeat(count, 1)  # (P, B): the token of each image at each position
    for sweep in range(_ROUNDS + 1):
        for q in range(count):
            others = [r for r in range(count if sweep else q) if r != q]
            if not others:
                continue
            score = torch.stack([blocks[r][member[r], q] for r in others]).sum(0)  # (image, token at q)
            member[q] = torch.as_tensor(linear_sum_assignment(-score.cpu().numpy())[1])
    chosen = member + images * torch.arange(count)[:, None]  # (P, B)
    inside = torch.stack([together[chosen[:, i]][:, chosen[:, i]].sum() for i in range(images)]).sum()
    return chosen.mT, float(inside / together.sum())


def _membership(block: FirstBlock, forms: Forms, a: Tensor, images: int) -> Tensor:
    """m_s for every token t, (T, T): near 1 where s and t are of one image, near 0 elsewhere."""
    b = torch.linalg.inv(a).mT
    sigma = forms.scale @ a
    prefix = centred(block.prefix)
    hats = torch.cat([forms.tokens @ a / sigma, prefix / (prefix.square().mean(0) + block.norm.epsilon).sqrt()], dim=1)
    inputs = block.norm.gamma[:, None] * hats + block.norm.beta[:, None]
    tokens, width, depth = len(a), block.width, block.width // block.heads
    qkv = block.qkv.weight @ inputs + (0 if block.qkv.bias is None else block.qkv.bias[:, None])
    q, k, v = (part.reshape(block.heads, depth, -1).mT for part in qkv.split(width))  # (h, T + K, d)
    seen = (forms.outgoing @ (b * sigma))[:width].reshape(block.heads, depth, tokens).mT  # ∂L/∂q, (h, T, d)
    behind = (block.proj.weight.mT @ (forms.after @ b)).reshape(block.heads, depth, tokens).mT
    logits = q[:, :tokens] @ k.mT / depth**0.5  # (h, T, T + K)
    attention = (logits - logits.amax(-1, keepdim=True)).exp()
    pulled = behind @ v.mT
    member = torch.ones(tokens, tokens + prefix.shape[1]).to(a)
    member[:, :tokens] = 1 / images
    size = seen.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)  # every head counts alike
    for _ in range(_ROUNDS):
        mass = member * attention
        total = mass.sum(-1, keepdim=True)
        mean = (mass * pulled).sum(-1, keepdim=True) / total
        strength = attention * (pulled - mean) / total / depth**0.5  # (h, T, T + K)
        for t in range(tokens):
            system = (strength[:, t, :, None] * k / size[:, t, :, None]).permute(0, 2, 1).reshape(width, -1)
            target = (seen[:, t] / size[:, t]).reshape(width) - system[:, tokens:].sum(1)
            member[t, :tokens] = torch.linalg.lstsq(system[:, :tokens], target[:, None]).solution[:, 0].clamp(0, 1)
        member[:, :tokens].fill_diagonal_(1)
    return member[:, :tokens]


def labels_of(observation: Observation, images: Tensor) -> Tensor:
    """The label of each image, (B,), from the classifier's gradient Σ_i (p_i − e_(y_i)) f_iᵀ and the features f_i."""
    model = observation.model
    head = model.anatomy.classifier
    if head is None or head.weight not in observation.signal:
        raise NotApplicable(
            "The classifier's gradient is not in the signal: which label goes with which image is open."
        )
    caught: list[Tensor] = []
    hook = model.module.get_submodule(head.module).register_forward_pre_hook(
        lambda _, inputs: caught.append(inputs[0].detach())
    )
    try:
        with torch.no_grad(), model.mode(False):
            expected = model(images).double().softmax(-1)
    finally:
        hook.remove()
    residual = observation.signal[head.weight].flatten(1).double() @ torch.linalg.pinv(caught[0].double())  # (K, B)
    mean = getattr(observation.protocol, "reduction", "mean") == "mean"
    return (residual.mT * (len(images) if mean else 1) / head.scale - expected).argmin(1)
