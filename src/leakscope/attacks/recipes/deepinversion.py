"""DeepInversion: Yin et al., CVPR 2020. What a prior dreams up: the reference for attacks that lean on one."""

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import adam, cosine_decay
from leakscope.attacks.recipes._statistics import statistics_of
from leakscope.attacks.registry import register_attack
from leakscope.attacks.terms import ImageNorm, TotalVariation, Weighted
from leakscope.attacks.terms.classified import Classified
from leakscope.functional.priors import total_variation_l2
from leakscope.models.image_prior import DEFAULT


@register_attack("deepinversion", cites="yin2020")
def deepinversion(
    *,
    steps: int = 20_000,
    lr: float = 0.25,
    bn: float = 0.01,
    tv: float = 1e-4,
    l2: float = 1e-5,
    network: str = DEFAULT,
    weights: str | None = None,
) -> Optimisation:
    """Label, image prior, TV and l2, no gradient matching: pictures of the class, never the client's own.

    It reads nothing but the labels off the signal, so what it scores is what a prior alone is worth.
    ``network="own"``: the target's own statistics, as published. Without the authors' jitter, flips and growing sizes.
    """
    terms = (
        Weighted(term=Classified()),
        Weighted(term=statistics_of(network, weights), weight=bn),
        Weighted(term=TotalVariation(total_variation_l2), weight=tv),
        Weighted(term=ImageNorm(), weight=l2),
    )
    return Optimisation(
        terms=tuple(term for term in terms if term.weight), optimiser=adam(lr), schedule=cosine_decay, steps=steps
    )
