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


def counting(
    weight: Tensor, bias: Tensor, head_weight: Tensor, head_bias: Tensor, batch_size: int, *, rounds: int = 10
) -> Tensor:
    """Labels with repeats, as a sorted (B,), by counting each class from the softmax expected at the current weights.

    If samples of class j have mean feature f_j and softmax p_j = softmax(W f_j + b), the counts n solve
    Σ_j n_j (p_j − e_j) = B ∂L/∂b with n ≥ 0 and Σ n = B; and given counts, the k-th row of the weight gradient gives
    n_k f_k = Σ_j n_j p_jk f_j − B ∂L/∂W_k. Both are solved in turn, from the one feature that explains the whole
    gradient best; counts are rounded by largest remainder. The gradient must be a batch mean. (The class-wise
    estimate follows instance-wise label restoration, Ma et al. 2023, whose ratio ∂L/∂W_k / ∂L/∂b_k is unstable where
    a class is about as frequent as the softmax expects.)

    A trained network is sure of most samples, whose residuals vanish: their labels are not in the gradient. Two things
    keep the estimate from going astray there. Where features are not negative, a negative entry in row k proves that
    class k occurs: n_k ≥ 1. And the more the softmax varies from class to class, the less one p_j speaks for all
    samples of class j, so the more the counts are held to B/K, the best guess for what leaves no trace.
    """
    weight, bias = weight.double(), bias.double()
    head_weight, head_bias = head_weight.double(), head_bias.double()
    common = bias @ weight / bias.square().sum().clamp_min(torch.finfo(torch.float64).tiny)  # least squares, (F,)
    features = common.expand_as(weight)  # (K, F)
    least = _occurring(weight, common, batch_size)
    counts = torch.full_like(bias, batch_size / len(bias))
    varied = 0.0
    for _ in range(rounds):
        expected = torch.softmax(features @ head_weight.T + head_bias, dim=1)  # (K, K), row j: p_j
        counts = _solve_counts(expected, bias, batch_size, least, prior=4 * varied**2 * len(bias))
        sums = (expected * counts[:, None]).T @ features - batch_size * weight  # row k: n_k f_k
        present = counts[:, None] > 0.5
        features = torch.where(present, sums / counts[:, None].clamp_min(0.5), common)
        share = counts[:, None] / counts.sum()
        varied = float((share * (expected - (share * expected).sum(dim=0)).square()).sum())
    return _round_to(counts, batch_size)


def _occurring(weight: Tensor, common: Tensor, batch_size: int) -> Tensor:
    """1 for classes that must occur, (K,): ∂L/∂W_k = Σ_i (p_ik − [y_i = k]) f_i/B is negative only where y_i = k.

    That needs features ≥ 0, which the mean feature shows; else, or if the classes were too many, nothing is claimed.
    """
    none = weight.new_zeros(len(weight))
    if float(common.clamp(max=0).abs().sum()) > 0.05 * float(common.abs().sum()):
        return none
    found = (weight.min(dim=1).values < -1e-6 * weight.abs().max()).to(weight.dtype)
    return found if int(found.sum()) <= batch_size else none


def _solve_counts(expected: Tensor, bias: Tensor, batch_size: int, least: Tensor, *, prior: float) -> Tensor:
    """n ≥ least with Σ n = B and Σ_j n_j (p_j − e_j) ≈ B ∂L/∂b, n ≈ B/K as far as ``prior`` says: least squares."""
    classes = len(bias)
    eye = torch.eye(classes, dtype=bias.dtype, device=bias.device)
    heavy = 1e3 * bias.new_ones(1, classes)  # the sum outweighs the fit
    rows = torch.cat([expected.T - eye, prior**0.5 * eye, heavy])
    even = bias.new_full((classes,), prior**0.5 * batch_size / classes)
    target = torch.cat([batch_size * bias, even, bias.new_full((1,), 1e3 * batch_size)]) - rows @ least
    return torch.from_numpy(nnls(rows.cpu().numpy(), target.cpu().numpy())[0]).to(bias) + least


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
