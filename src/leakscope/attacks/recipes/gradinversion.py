"""GradInversion: Yin et al., CVPR 2021."""

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import adam
from leakscope.attacks.recipes._statistics import OWN, statistics_of
from leakscope.attacks.registration import Alignment
from leakscope.attacks.registry import register_attack
from leakscope.attacks.schedules import WarmUp
from leakscope.attacks.terms import ImageNorm, Match, TotalVariation, Weighted
from leakscope.attacks.terms.group import GroupConsistency
from leakscope.functional.distances import squared_l2
from leakscope.functional.priors import total_variation_l2


@register_attack("gradinversion", cites="yin2021")
def gradinversion(
    *,
    steps: int = 20_000,
    lr: float = 0.1,
    matching: float = 1e-4,
    bn: float = 0.1,
    tv: float = 1e-4,
    l2: float = 1e-6,
    group: float = 0.01,
    noise: float = 0.2,
    network: str = OWN,
    weights: str | None = None,
    align: Alignment = "shift",
) -> Optimisation:
    """Matching, the target's BatchNorm statistics, TV, l2 and a registered group; noise on every update.

    The warm-up takes 50 steps, or a tenth of a short run. ``network``: another network's statistics, for a target that
    has none (see ``gradvit``). A term of weight 0 is left out.
    """
    terms = (
        Weighted(term=Match(squared_l2), weight=matching),
        Weighted(term=statistics_of(network, weights), weight=bn),
        Weighted(term=TotalVariation(total_variation_l2), weight=tv),
        Weighted(term=ImageNorm(), weight=l2),
        Weighted(term=GroupConsistency(align=align), weight=group),
    )
    return Optimisation(
        terms=tuple(term for term in terms if term.weight),
        optimiser=adam(lr),
        schedule=WarmUp(steps=min(50, steps // 10), of=max(steps, 1)),
        noise=noise,
        population=2,
        steps=steps,
    )
