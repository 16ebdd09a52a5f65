"""Data leakage in federated averaging: Dimitrov et al., TMLR 2022; and the short cut that it is measured against."""

from dataclasses import replace
from typing import Any, Final, Literal, cast

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import adam, box, cosine_decay, sign
from leakscope.attacks.recipes.inverting_gradients import inverting_gradients
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.attacks.terms import Match, TotalVariation, Weighted
from leakscope.attacks.terms.epochs import EpochInvariance
from leakscope.attacks.views import AsItIs, DeltaAsGradient, EpochCopies
from leakscope.functional.distances import cosine

_LEAKY: Final[dict[str, Any]] = {
    "model": {"name": "leakscope:mlp?hidden=64&activation=tanh", "image_size": 8, "num_classes": 10},
    "options": {"steps": 400, "population": 1},
}


@register_attack(
    "data-leakage-fl",
    cites="dimitrov2022",
    leaky=Leaky(client={"type": "fedavg", "steps": 3, "lr": 0.05}, psnr=30, **_LEAKY),
)
def data_leakage_fl(
    *,
    steps: int = 1000,
    tv: float = 1e-3,
    lr: float = 0.1,
    order: Literal["known", "unknown"] = "unknown",
    invariance: float = 1e-2,
) -> Optimisation:
    """The client's whole local training is replayed; where its order is unknown, with a copy of the batch per epoch.

    Distance, optimiser and weights are ours.
    """
    return Optimisation(
        terms=(
            Weighted(term=Match(cosine)),
            Weighted(term=TotalVariation(), weight=tv),
            Weighted(term=EpochInvariance(), weight=invariance),
        ),
        optimiser=adam(lr),
        schedule=cosine_decay,
        transforms=(sign,),
        project=box,
        view=EpochCopies() if order == "unknown" else AsItIs(),
        steps=steps,
    )


@register_attack(
    "delta-as-gradient",
    cites="dimitrov2022",
    leaky=Leaky(client={"type": "fedavg", "steps": 3, "lr": 0.01}, psnr=25, **_LEAKY),
)
def delta_as_gradient(*, steps: int = 4800, tv: float = 1e-2, lr: float = 0.1) -> Optimisation:
    """Inverting Gradients on the weight delta, taken for a gradient: cheap, and off by what local training bent."""
    made = cast(Optimisation, inverting_gradients(steps=steps, tv=tv, lr=lr))
    return replace(made, view=DeltaAsGradient())
