"""Two quadratic forms that the tokens' duals diagonalise, from the residual connections around attention and MLP.

A norm's Jacobian is (1/σ)(C − ẑẑᵀ/D) diag(γ), so a token's gradient on either side of the first attention obeys

    δ_t = r_t + C(γ ⊙ Wᵀε_t)/σ_t − c_t Cz_t,        c_t = ẑ_tᵀ(γ ⊙ Wᵀε_t) / (D σ_t²),

with r_t = ∂L/∂(token after attention). All but r and c is a known linear function of the unknown pair (a_t, b_t) of
:mod:`confinement`: δ_t = U S b_t; Cz_t = Z a_t, as d_q tells the position; and ε_t/σ_t = Γ b_t from
∂L/∂W_qkv = Σ_t (ε_t/σ_t)(Cz_t)ᵀ. Since the a and b are dual bases, c_t a_t = N b_t with the symmetric
**N = Σ_t c_t a_t a_tᵀ**, and

    U S − C(γ ⊙ WᵀΓ) + Z N = R,        r_t = R b_t in the column space of ∂L/∂W_proj:

off that space, linear equations for N alone, overdetermined while B(2P + 1) < D. The residual around the MLP gives a
second form in the same way, with ∂L/∂W₂ in place of ∂L/∂W_proj; there y_t = Y a_t follows from
∂L/∂W_proj = Σ_t r_t o_tᵀ, up to what the class tokens add. Both are diagonal in the tokens: bᵀ_s N b_t = c_t [s = t].

Third, Σ_t ε_t is known from ∂L/∂β, which makes σ_t = mᵀa_t linear too: |Z a_t|²/D + ε = (mᵀa_t)² for every token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from leakscope.attacks.separation._block import FirstBlock, Linear, Norm, centred
from leakscope.attacks.separation.confinement import Confinement, Factor, factor
from leakscope.errors import NotApplicable
from leakscope.functional.linalg import relative

__all__ = ["Form", "Forms", "quadratic_forms"]

_BROKEN: Final = 0.01
_ROUNDS: Final = 2
_SIGMA_ERROR: Final = 300.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A symmetric N (T, T), and its uncertainty: N = W M Wᵀ where the entries of M have variances ``variances``."""

    matrix: Tensor
    frame: Tensor
    variances: Tensor

    def deviation(self, b: Tensor) -> Tensor:
        """The standard deviation of b_sᵀ N b_t for all columns of ``b``, (T, T)."""
        seen = (self.frame.mT @ b).square()
        return (seen.mT @ self.variances @ seen).sqrt()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Both forms, and the maps from a and b to what a token is: ``tokens`` Z, ``outgoing`` Γ, ``after`` R, ``scale`` m.

    ``scale_error`` is how far (mᵀa)² may be from σ², relatively. ``check`` is the share of ∂L/∂W_qkv that the
    confined tokens do not explain.
    """

    forms: tuple[Form, Form]
    tokens: Tensor
    outgoing: Tensor
    after: Tensor
    scale: Tensor
    epsilon: float
    scale_error: float
    check: float
    gaps: tuple[float, ...]


def quadratic_forms(block: FirstBlock, space: Confinement) -> Forms:
    """Both forms for this batch; raises where there are too few equations or they do not hold."""
    found, width = space.factor, block.width
    tokens, prefix = len(space.duals), block.prefix.shape[1]
    rank = tokens + space.images * prefix
    if tokens + rank + space.images * prefix + 1 > width:
        raise NotApplicable(
            f"{space.images} images make {rank} tokens of width {width}. The equations around the first block settle "
            f"the batch only while twice the tokens are fewer than the width."
        )
    z = centred(block.embedding @ found.right + block.table @ space.duals.mT)  # (D, T)
    coefficients, check, noise = _outgoing(block, z)
    outgoing = coefficients[:, :tokens]  # Γ
    delta = found.left * found.values - block.norm.back(block.qkv, outgoing)
    behind = factor(block.proj.gradient, rank, "the first attention's output layer")
    x, y = behind.off_left(z), behind.off_left(delta)
    steady = found.noise**2 + (noise * _gain(block.norm, block.qkv)) ** 2
    steepness = found.noise * float(block.embedding.norm()) / width**0.5
    eye = torch.eye(tokens).to(z)
    first = _symmetric(x, y, eye)
    after, covariance = delta, eye
    for _ in range(_ROUNDS):
        after = behind.left @ (behind.left.mT @ (delta + z @ first.matrix))  # R
        covariance = (
            steady * eye + _leaked(behind, after) + steepness**2 * (first.matrix / found.values**2) @ first.matrix
        )
        first = _symmetric(x, y, covariance)
    after = behind.left @ (behind.left.mT @ (delta + z @ first.matrix))
    second, gaps = _around_mlp(block, space, after, behind, covariance)
    return Forms(
        forms=(first, second),
        tokens=z,
        outgoing=outgoing,
        after=after,
        scale=_scale(block, coefficients, tokens),
        epsilon=block.norm.epsilon,
        scale_error=_SIGMA_ERROR * max(check, 1e-15),
        check=check,
        gaps=(found.gap, behind.gap, *gaps),
    )


def _outgoing(block: FirstBlock, z: Tensor) -> tuple[Tensor, float, float]:
    """∂L/∂W_qkv over the tokens: (ε/σ) for each column of Z and for the class tokens; the misfit and its noise."""
    rows, beta = block.norm.undo(block.qkv)
    known = torch.cat([z, centred(block.prefix), *([] if beta is None else [beta])], dim=1)
    coefficients = rows @ torch.linalg.pinv(known.mT)
    misfit = rows - coefficients @ known.mT
    check = relative(misfit, rows)
    if check > _BROKEN:
        raise NotApplicable(
            f"The confined patches leave {check:.1%} of the first attention's gradient unexplained: several steps, "
            "noise, a defence or random layers stand between this signal and the gradient of one batch."
        )
    spare = rows.shape[0] * (rows.shape[1] - known.shape[1])
    return coefficients, check, float(misfit.norm()) / spare**0.5


def _scale(block: FirstBlock, coefficients: Tensor, tokens: int) -> Tensor:
    """m with σ_t = mᵀa_t: Wᵀ Σ_t ε_t = ∂L/∂β, and Σ_t ε_t = Γ Σ_t σ_t b_t + the class tokens' part, which is known."""
    seen = block.qkv.weight.mT @ coefficients
    prefix = centred(block.prefix)
    sigma = (prefix.square().mean(0) + block.norm.epsilon).sqrt()
    target = block.norm.beta_gradient - seen[:, tokens : tokens + prefix.shape[1]] @ sigma
    return torch.linalg.lstsq(seen[:, :tokens], target[:, None]).solution[:, 0]


def _around_mlp(
    block: FirstBlock, space: Confinement, after: Tensor, behind: Factor, covariance: Tensor
) -> tuple[Form, tuple[float, ...]]:
    """The second form, from r_t = r'_t + C(γ ⊙ W₁ᵀη_t)/σ_t − c_t Cy_t with r'_t in the column space of ∂L/∂W₂."""
    rows, beta = block.second_norm.undo(block.first)
    if beta is not None:
        raise NotApplicable("The first MLP layer has no bias gradient, which its norm's shift makes necessary.")
    tokens, rank = after.shape[1], behind.left.shape[1]
    into = factor(rows, rank, "the MLP's first layer")
    out = factor(block.second.gradient, rank, "the MLP's second layer")
    # G_proj = R Oᵀ + the class tokens' part: o_t = O a_t, up to what the class tokens put out.
    q = torch.linalg.qr(after).Q
    others = torch.linalg.svd(behind.left - q @ (q.mT @ behind.left), full_matrices=False).U[:, : rank - tokens]
    put = torch.linalg.lstsq(torch.cat([after, others], dim=1), block.proj.gradient).solution.mT  # (D, n)
    bias = torch.zeros(block.width).to(after) if block.proj.bias is None else block.proj.bias
    table = block.table + bias[:, None]
    y = block.embedding @ space.factor.right + table @ space.duals.mT + block.proj.weight @ put[:, :tokens]
    y = centred(y)  # Y, up to the class tokens
    unknown = y[:, :0]
    prefix = block.prefix.shape[1]
    if prefix:
        shared = centred(block.proj.weight @ put[:, tokens:])
        # The rows of ∂L/∂W₁ fix Y as far as it matters, and show the class tokens' own span.
        y = y - shared @ _truncated(into.off_right(shared), into.off_right(y), prefix)
        span = torch.cat([centred(block.prefix + bias[:, None]), shared], dim=1)
        v = torch.linalg.svd(into.off_right(span), full_matrices=False).Vh
        unknown = torch.linalg.qr(span @ v[prefix:].mT).Q
    eta = torch.linalg.lstsq(torch.cat([y, unknown], dim=1), rows.mT).solution.mT[:, :tokens]
    delta = after - block.second_norm.back(block.first, eta)
    drop = torch.linalg.qr(out.off_left(unknown)).Q

    def seen(columns: Tensor) -> Tensor:
        columns = out.off_left(columns)
        return columns - drop @ (drop.mT @ columns)

    x, target = seen(y), seen(delta)
    second = _symmetric(x, target, torch.eye(tokens).to(x))
    own = (into.noise * _gain(block.second_norm, block.first)) ** 2 * torch.eye(tokens).to(x)
    for _ in range(_ROUNDS):
        noise = covariance + _leaked(behind, after) + _leaked(out, delta + y @ second.matrix) + own
        second = _symmetric(x, target, noise)
    return second, (into.gap, out.gap)


def _symmetric(x: Tensor, y: Tensor, covariance: Tensor) -> Form:
    """The symmetric N that minimises ‖(X N + Y) Ω^½‖, Ω the inverse of the columns' noise ``covariance``.

    Its normal equations M N Ω + Ω N M = −(XᵀYΩ + ΩYᵀX), M = XᵀX, fall apart in the basis that diagonalises both.
    """
    root = torch.linalg.cholesky(covariance)
    values, q = torch.linalg.eigh(root.mT @ (x.mT @ x) @ root)
    frame = root @ q  # frameᵀ Ω frame = 1, frameᵀ M frame = diag(values)
    right = frame.mT @ (x.mT @ y) @ torch.linalg.solve(frame, torch.eye(len(q)).to(x)).mT
    variances = 1 / (values[:, None] + values)
    return Form(matrix=-frame @ ((right + right.mT) * variances) @ frame.mT, frame=frame, variances=variances)


def _leaked(space: Factor, columns: Tensor) -> Tensor:
    """The covariance of what the noise in a column space leaves behind when ``columns`` are projected off it."""
    share = (space.left.mT @ columns) / space.values[:, None]
    return space.noise**2 * share.mT @ share


def _gain(norm: Norm, layer: Linear) -> float:
    """How much noise in the columns of a layer's gradient grows on the way back through its norm."""
    return float(centred(norm.gamma[:, None] * layer.weight.mT).norm()) / len(norm.gamma) ** 0.5


def _truncated(a: Tensor, b: Tensor, rank: int) -> Tensor:
    """The least-squares solution of A X = B within A's first ``rank`` singular directions."""
    u, s, vt = torch.linalg.svd(a, full_matrices=False)
    return vt[:rank].mT @ ((u[:, :rank].mT @ b) / s[:rank, None])
