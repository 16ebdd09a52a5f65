"""Labels from the gradient of the classifier, without any image.

For cross-entropy averaged over B samples with head logits z_i = W f_i + b and p_i = softmax(z_i),

    ∂L/∂b = (1/B) Σ_i (p_i − e_{y_i}),        ∂L/∂W = (1/B) Σ_i (p_i − e_{y_i}) f_iᵀ,

so a class that occurs in the batch pulls its row down. ``weight`` is ∂L/∂W, (K, F); ``bias`` is ∂L/∂b, (K,).
"""

from __future__ import annotations

import torch
from scipy.optimize import nnls
from torch import Tensor

from leakscope.errors import NotApplicable

__all__ = ["counting", "idlg", "label_accuracy", "minimum_rule"]


def idlg(weight: Tensor) -> Tensor:
    """The one label of a single sample (iDLG, Zhao et al. 2020), as (1,).

    With B = 1 every row of ∂L/∂W is a multiple of the same feature, negative only at the label: the label is the row
    whose inner product with every other row is not positive.
    """
    weight = weight.double()
    products = weight @ weight.T
    opposed = (products.fill_diagonal_(0) <= 0).sum(dim=1)
    return opposed.argmax().reshape(1)


def minimum_rule(weight: Tensor, batch_size: int) -> Tensor:
    """The ``batch_size`` classes with the most negative entry in their row (GradInversion; GradViT Eq. 2), as (B,).

    Finds every label when they are all different and features are non-negative; it cannot see repeats.
    """
    classes = weight.shape[0]
    if batch_size > classes:
        raise NotApplicable(
            f"The minimum rule finds distinct labels only: {batch_size} samples of {classes} classes must repeat. "
            "Use the counting rule."
        )
    return weight.min(dim=1).values.argsort(stable=True)[:batch_size].sort().values


def counting(weight: Tensor, bias: Tensor, head_weight: Tensor, head_bias: Tensor, batch_size: int) -> Tensor:
    """Labels with repeats, as a sorted (B,), by counting each class.

    Class k's mean feature is estimated from the gradient itself, f̄_k = ∂L/∂W_k / ∂L/∂b_k, and with it the softmax its
    samples have at the current weights, p̄_k = softmax(W f̄_k + b). The counts n then solve
    Σ_k n_k (p̄_k − e_k) = B ∂L/∂b with n ≥ 0 and Σ n = B, and are rounded by largest remainder. (After instance-wise
    label restoration, Ma et al. 2023; the gradient must be a batch mean.)
    """
    weight, bias = weight.double(), bias.double()
    classes = bias.shape[0]
    scale = bias.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    # A row whose bias gradient all but vanishes has no usable ratio: it falls back on the whole batch's mean feature.
    overall = (weight * bias[:, None]).sum(0) / bias.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
    usable = bias.abs() > 1e-6 * scale
    features = torch.where(usable[:, None], weight / torch.where(usable, bias, 1.0)[:, None], overall)  # (K, F)
    expected = torch.softmax(features @ head_weight.double().T + head_bias.double(), dim=1)  # (K, K)

    system = expected.T - torch.eye(classes, dtype=torch.float64)  # column k: what one sample of class k adds
    heavy = 1e3 * system.abs().max()  # the count constraint outweighs the fit
    rows = torch.cat([system, heavy * torch.ones(1, classes, dtype=torch.float64)])
    target = torch.cat([batch_size * bias, (heavy * batch_size).reshape(1)])
    counts = torch.from_numpy(nnls(rows.cpu().numpy(), target.cpu().numpy())[0])
    return _round_to(counts, batch_size)


def _round_to(counts: Tensor, total: int) -> Tensor:
    """Whole counts that sum to ``total``, by largest remainder, as sorted labels (total,)."""
    counts = counts * (total / counts.sum().clamp_min(1e-12))
    whole = counts.floor().long()
    missing = total - int(whole.sum())
    whole[(counts - whole).argsort(descending=True, stable=True)[:missing]] += 1
    return torch.repeat_interleave(torch.arange(len(whole)), whole)


def label_accuracy(found: Tensor, truth: Tensor, num_classes: int) -> float:
    """The share of the batch's labels found, as multisets: order does not matter, repeats do."""
    mine = torch.bincount(found, minlength=num_classes)
    theirs = torch.bincount(truth, minlength=num_classes)
    return float(torch.minimum(mine, theirs).sum() / theirs.sum())
