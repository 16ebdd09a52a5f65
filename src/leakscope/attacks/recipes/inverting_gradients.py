"""Inverting Gradients: Geiping et al., NeurIPS 2020."""

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import adam, box, decay_at, sign
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.attacks.terms import Match, TotalVariation, Weighted
from leakscope.functional.distances import cosine


@register_attack(
    "inverting-gradients",
    cites="geiping2020",
    leaky=Leaky(
        model={"name": "leakscope:mlp?hidden=64&activation=tanh", "image_size": 8, "num_classes": 10},
        options={"steps": 400, "population": 1},
        psnr=25,
    ),
)
def inverting_gradients(*, steps: int = 4800, tv: float = 1e-2, lr: float = 0.1) -> Optimisation:
    """Cosine matching, total variation, signed Adam, pixels kept in their range."""
    return Optimisation(
        terms=(Weighted(term=Match(cosine)), Weighted(term=TotalVariation(), weight=tv)),
        optimiser=adam(lr),
        transforms=(sign,),
        schedule=decay_at(3 / 8, 5 / 8, 7 / 8),
        project=box,
        steps=steps,
    )
