"""Exact-GIT: a plain network undone layer by layer, from the logits down to the pixels.

For a chain A_i = σ_i(A_{i−1} W_iᵀ + b_i) with one row per sample, D_i = ∂L/∂Z_i and G_i = ∂L/∂W_i = D_iᵀ A_{i−1},

    A_{i−1} = (D_iᵀ)⁺ G_i,        D_{i−1} = (D_i W_i) ⊙ σ′_{i−1}(A_{i−1}),

starting from D_L at the logits. One sample: D_L is the gradient of the last bias, or follows from the softmax where
there is no bias. Several samples: any invertible B × B matrix can hide between D_L and A_{L−1}, so D_L must be given
(``head_residuals``); the rest is exact while the rows of every D_i are independent, for which B ≤ K − 1, because the
residuals of a softmax over K classes sum to zero. Convolutions take one sample and the weights' own equations
(:mod:`~leakscope.attacks.analytic.conv_recursion`).

The recursion is the exact part of Gradient Inversion Transcript (Chen and Liu 2025); R-GAP (Zhu and Blaschko 2021)
has it for one sample.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from leakscope.attacks.analytic._one_image import gradient
from leakscope.attacks.analytic.chain import Chain, Link, whole_chain
from leakscope.attacks.analytic.conv_recursion import LayerSolve, convolution_backward, solve_convolution
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.errors import BadInput, NotApplicable
from leakscope.functional.linalg import relative
from leakscope.types import Callback, Observation, Outcome, Reconstruction, Signal, Status

__all__ = ["ExactGIT", "exact_git", "replay_error"]

_ZERO = 1e-6  # relative size up to which a ReLU's output counts as zero
_INDEPENDENT = 1e-6


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExactGIT:
    """The recursion; see the module. ``tolerance`` is the largest accepted replay error, ‖g(x̂) − g‖ / ‖g‖."""

    head_residuals: Tensor | None = None
    tolerance: float = 0.05
    largest: int = 6144

    def __call__(
        self, observation: Observation, *, generator: torch.Generator, callback: Callback | None = None
    ) -> Reconstruction:
        started = time.perf_counter()
        chain = whole_chain(observation)
        delta = self._start(observation, chain)
        labels = delta.abs().argmax(dim=1)  # |p_y − 1| is the sum of all the other entries
        values, solves, biases = self._descend(observation, chain, delta)
        model = observation.model
        pixels = values.to(model.device).reshape(-1, *model.input.shape) * model.std.double() + model.mean.double()
        images = pixels.clamp(0, 1).to(model.dtype)
        labels = labels.to(model.device)
        error = replay_error(observation, images, labels)
        if not error <= self.tolerance:
            raise NotApplicable(
                f"The recursion ended in images whose own gradient differs from the observed one by {error:.2g} of its "
                f"norm (accepted: {self.tolerance:g}): the signal is no exact gradient of {len(images)} image(s)."
            )
        evidence = {
            "layers": [solve.layer for solve in solves],
            "rank": [solve.rank for solve in solves],
            "unknowns": [solve.unknowns for solve in solves],
            "equations": [solve.equations for solve in solves],
            "condition": [solve.condition for solve in solves],
            "residual": [solve.residual for solve in solves],
            "bias check": biases,
            "self-check": error,
            "clamped": float(((pixels < -1e-3) | (pixels > 1 + 1e-3)).double().mean()),
            "head residuals": "given" if self.head_residuals is not None else "found",
        }
        message = f"{len(solves)} layers undone; the replayed gradient differs by {error:.1e} of its norm."
        return Reconstruction(
            images=images,
            labels=labels,
            energy=error,
            outcome=Outcome(status=Status.FINISHED, message=message),
            seconds=time.perf_counter() - started,
            evidence=evidence,
        )

    def _start(self, observation: Observation, chain: Chain) -> Tensor:
        """D at the logits, (B, K): given, or the gradient of the last bias, or what the softmax demands."""
        head = chain.links[-1]
        if not isinstance(head.layer, nn.Linear) or head.activation.name != "identity":
            raise NotApplicable(f"The logits do not come from a linear layer but from '{head.module}'.")
        known = observation.input.batch_size
        if self.head_residuals is not None:
            return self._given(observation, head, self.head_residuals, known)
        if known is not None and known != 1:
            raise NotApplicable(
                f"The batch holds {known} images, whose residuals at the logits the gradient gives only up to an "
                f"invertible {known} × {known} matrix. They can be handed in as 'head_residuals'."
            )
        weight = gradient(observation, head.weight, "the last layer").cpu()
        _, values, _ = torch.linalg.svd(weight, full_matrices=False)
        if len(values) > 1 and float(values[1]) > 1e-2 * float(values[0]):
            raise NotApplicable(
                "The gradient of the last layer has rank above 1: it is a sum over several images (or very noisy)."
            )
        if head.bias is not None and head.bias in observation.signal:
            return gradient(observation, head.bias, "the last bias").cpu()[None]
        return _from_softmax(head, weight)[None]

    def _given(self, observation: Observation, head: Link, residuals: Tensor, known: int | None) -> Tensor:
        classes = observation.input.num_classes
        if residuals.ndim != 2 or residuals.shape[1] != classes or (known is not None and len(residuals) != known):
            raise BadInput(
                f"head_residuals must be ∂L/∂logits, ({known or 'B'}, {classes}): one row per image; got "
                f"{tuple(residuals.shape)}."
            )
        delta = residuals.detach().double().cpu()
        if len(delta) > classes - 1:
            raise NotApplicable(
                f"{len(delta)} residuals over {classes} classes are dependent (each sums to zero): at most "
                f"{classes - 1} images can be told apart."
            )
        if head.bias is not None and head.bias in observation.signal:
            total = gradient(observation, head.bias, "the last bias").cpu()
            if relative(delta.sum(dim=0) - total, total) > 0.01:
                raise NotApplicable(
                    "The given head_residuals do not sum to the gradient of the last bias: they belong to another "
                    "batch, or miss the loss's factor 1/B."
                )
        return delta

    def _descend(
        self, observation: Observation, chain: Chain, delta: Tensor
    ) -> tuple[Tensor, list[LayerSolve], dict[str, float]]:
        """The input of the first link, (B, …), with the account of every layer."""
        solves: list[LayerSolve] = []
        biases: dict[str, float] = {}
        output = torch.zeros(0)
        precision = float(torch.finfo(observation.signal[chain.links[-1].weight].dtype).eps)
        for index in range(len(chain.links) - 1, -1, -1):
            link = chain.links[index]
            slope = gradient(observation, link.weight, f"layer '{link.module}'").cpu()
            if link.bias is not None and link.bias in observation.signal:
                total = observation.signal[link.bias].double().cpu()
                summed = delta.sum(dim=0) if isinstance(link.layer, nn.Linear) else delta.sum(dim=(0, 2, 3))
                biases[link.module] = relative(summed - total, total)
            if isinstance(link.layer, nn.Linear):
                values, solve = _solve_linear(link, delta, slope)
                back = delta @ link.layer.weight.detach().double().cpu()
            else:
                if len(delta) != 1:
                    raise NotApplicable(f"'{link.module}' is a convolution: its recursion holds for one image.")
                values, solve = solve_convolution(link, delta[0], slope, output, largest=self.largest)
                values, back = values[None], convolution_backward(link, delta[0])[None]
            solves.append(solve)
            if index == 0:
                return values, solves, biases
            before = chain.links[index - 1]
            values = values.reshape(-1, *before.output)
            threshold = max(_ZERO, 10 * precision * solve.condition) if isinstance(link.layer, nn.Linear) else _ZERO
            delta = back.reshape(values.shape) * before.activation.derivative(values, threshold=threshold)
            if not bool(delta.any()):
                raise NotApplicable(f"No unit before '{link.module}' is active: nothing passes back to the image.")
            output = values[0]
        raise AssertionError("a chain has at least one link")


@register_attack(
    "exact-git",
    cites="git2025",
    leaky=Leaky(
        model={"name": "leakscope:mlp?hidden=64&activation=tanh", "image_size": 16, "num_classes": 10},
        psnr=60,
    ),
)
def exact_git(*, head_residuals: Tensor | None = None, tolerance: float = 0.05) -> ExactGIT:
    """A plain MLP or convolutional network undone layer by layer, exactly; one image, or more with given residuals.

    ``head_residuals`` is extra knowledge that no honest server has: ∂L/∂logits of every sample, (B, K), as a leaking
    log, a side channel or an auditor's own replay would give it. Without it, batches of two or more are refused.
    """
    return ExactGIT(head_residuals=head_residuals, tolerance=tolerance)


def replay_error(observation: Observation, images: Tensor, labels: Tensor) -> float:
    """‖g(x̂, ŷ) − g‖ / ‖g‖ over every gradient observed: the client replayed on a reconstruction, without the truth."""
    replayed: Signal = observation.protocol.replay(observation.model, images, labels)
    pairs = [(replayed[name].double(), value.double()) for name, value in observation.gradients.items()]
    gap = sum(float((mine - theirs).square().sum()) for mine, theirs in pairs)
    size = sum(float(theirs.square().sum()) for _, theirs in pairs)
    return (gap / size) ** 0.5 if size else float("inf")


def _solve_linear(link: Link, delta: Tensor, slope: Tensor) -> tuple[Tensor, LayerSolve]:
    """A (B, n) with Dᵀ A = G."""
    left, scales, right = torch.linalg.svd(delta.T, full_matrices=False)
    count = len(delta)
    rank = int((scales > _INDEPENDENT * scales[0]).sum())
    if rank < count:
        raise NotApplicable(
            f"At '{link.module}' the {count} samples' gradients have rank {rank}: their inputs cannot be told apart."
        )
    values = right.T @ ((left.T @ slope) / scales[:, None])
    solve = LayerSolve(
        layer=link.module,
        equations=delta.shape[1],
        unknowns=count,
        rank=rank,
        condition=float(scales[0] / scales[-1]),
        residual=relative(delta.T @ values - slope, slope),
    )
    return values, solve


def _from_softmax(head: Link, weight: Tensor) -> Tensor:
    """D of one sample at logits without bias, (K,): G = D aᵀ fixes both up to a factor s, the softmax fixes s.

    D = s·u and a = (σ/s)·v must satisfy softmax(W a) − e_y = D: one equation in s, scanned and bisected.
    """
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    direction, feature = left[:, 0], right[0] * values[0]
    label = int(direction.abs().argmax())
    if direction[label] > 0:
        direction, feature = -direction, -feature
    logits = head.layer.weight.detach().double().cpu() @ feature

    def excess(scale: Tensor) -> Tensor:
        # log of the label's probability, by the residual and by the softmax
        chance = torch.log1p(scale * direction[label])
        return chance - torch.log_softmax(logits / scale[..., None], dim=-1)[..., label]

    end = 1 / -float(direction[label])
    grid = end * torch.linspace(-14, -1e-9, 4000, dtype=torch.float64).exp()
    found = excess(grid)
    turns = (found[:-1].sign() != found[1:].sign()).nonzero()[:, 0]
    if not len(turns):
        raise NotApplicable("The last layer has no bias gradient, and no softmax fits the gradient of its weights.")
    low, high = grid[turns], grid[turns + 1]
    for _ in range(80):
        middle = (low + high) / 2
        same = excess(middle).sign() == excess(low).sign()
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    one_hot = torch.nn.functional.one_hot(torch.tensor(label), len(direction)).double()
    guesses = low[:, None] * direction
    misfit = (torch.softmax(logits / low[:, None], dim=1) - one_hot - guesses).norm(dim=1)
    return guesses[misfit.argmin()]
