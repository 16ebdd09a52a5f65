"""One link of a transcript, and the activations between links."""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakscope.attacks.analytic.chain import Activation
from leakscope.attacks.learned.scaling import Standardise, linear, ridge

__all__ = ["INVERTIBLE", "GITModule", "redone", "undone"]

INVERTIBLE: Final = ("sigmoid", "tanh", "leaky")
"""The activations that are undone on a state."""
_EDGE: Final = 1e-3
"""Estimated outputs of an activation are kept this far from its bounds, where its inverse runs away."""
_HELD: Final = 0.1
_APART: Final = 32


@final
class GITModule(nn.Module):
    """[G_i, G_{i+1}, Â_i] ↦ Â_{i−1}: a linear map of the state, and a perceptron with one hidden layer for the rest.

    The linear map is solved for, not trained: ridge regression from the estimated state to the true one, which a server
    knows for its public images. The perceptron starts at zero, in units of what the linear map leaves over, so training
    starts from the best linear chain. Where the link's input has a closed form, both only add to it.
    """

    left: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, gradients: int, state: int, out: int, *, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.scale_gradients, self.scale_state = Standardise(gradients), Standardise(state)
        self.inner = linear(gradients + state, hidden, generator)
        self.outer = linear(hidden, out, generator, zero=True)
        self.register_buffer("weight", torch.zeros(out, state))
        self.register_buffer("bias", torch.zeros(out))
        self.register_buffer("left", torch.ones(out))

    def forward(self, gradients: Tensor, state: Tensor, closed: Tensor | None) -> Tensor:
        rows = torch.cat([self.scale_gradients(gradients), self.scale_state(state)], dim=1)
        found = F.linear(state, self.weight, self.bias) + self.left * self.outer(F.gelu(self.inner(rows)))
        return found if closed is None else closed + found

    def start(self, gradients: Tensor, state: Tensor, closed: Tensor | None, targets: Tensor) -> None:
        """Scales and the linear map, from training pairs; ``targets`` (N, out) are the true states below."""
        wanted = targets if closed is None else targets - closed
        self.scale_gradients.fit(gradients)
        self.scale_state.fit(state)
        weight, bias, _ = ridge(state, wanted, held=max(1, int(_HELD * len(targets))))
        self.weight.copy_(weight.T)
        self.bias.copy_(bias)
        # By rows that the regression has not seen: on its own rows it looks better than it is.
        apart = slice(-max(_APART, int(_HELD * len(targets))), None)
        missed = F.linear(state[apart], self.weight, self.bias) - wanted[apart]
        self.left.copy_(missed.square().mean(0).sqrt())


def redone(before: Tensor, activation: Activation) -> Tensor:
    """The activation's output again, inside its bounds."""
    match activation.name:
        case "sigmoid":
            return torch.sigmoid(before)
        case "tanh":
            return torch.tanh(before)
        case _:
            return F.leaky_relu(before, activation.slope)


def undone(state: Tensor, activation: Activation | None) -> Tensor:
    """What went into the activation that made this state; estimates are kept off its bounds."""
    match activation.name if activation is not None else "":
        case "sigmoid":
            return torch.logit(state.clamp(_EDGE, 1 - _EDGE))
        case "tanh":
            return torch.atanh(state.clamp(-1 + _EDGE, 1 - _EDGE))
        case "leaky":
            assert activation is not None
            return activation.inverse(state)
        case _:
            return state
