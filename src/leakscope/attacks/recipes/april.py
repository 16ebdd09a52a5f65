"""APRIL by optimisation: Lu et al., CVPR 2022."""

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import adam, cosine_decay
from leakscope.attacks.registry import register_attack
from leakscope.attacks.terms import Match, Weighted
from leakscope.attacks.terms.position import PositionDirection
from leakscope.functional.distances import squared_l2


@register_attack("april", cites="lu2022")
def april(*, steps: int = 1500, lr: float = 0.1, alpha: float = 100.0) -> Optimisation:
    """Squared distance of gradients, and the direction of the position embedding's gradient.

    L_G + α L_A, Adam from N(0, 1); 800 steps for MNIST, 1,500 for CIFAR-10, 5,000 for ImageNet. The paper gives neither
    α nor the rate: both, and the cosine decay, are ours. ``alpha=0`` leaves L_A out.
    """
    terms = (Weighted(term=Match(squared_l2)), Weighted(term=PositionDirection(), weight=alpha))
    return Optimisation(
        terms=tuple(term for term in terms if term.weight), optimiser=adam(lr), schedule=cosine_decay, steps=steps
    )
