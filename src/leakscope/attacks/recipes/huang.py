"""Evaluating gradient inversion under training conditions: Huang et al., NeurIPS 2021."""

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.recipes.feasibility import with_statistics
from leakscope.attacks.registry import register_attack


@register_attack("huang", cites="huang2021", leaky=None)
def huang(*, steps: int = 10_000, tv: float = 0.052, bn: float = 1.6e-4, lr: float = 0.1) -> Optimisation:
    """Inverting Gradients and BatchNorm statistics, towards the model's running ones.

    The weights are the feasibility study's, so that ``huang`` and ``feasibility`` differ in their targets alone. A
    model without trained BatchNorm statistics is refused: on it this would be Inverting Gradients. Nothing is trained
    for a self-test, so it has none.
    """
    return with_statistics(steps=steps, tv=tv, bn=bn, lr=lr, statistics="running")
