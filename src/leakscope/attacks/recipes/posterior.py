"""The most probable images behind a noisy update: the view of Balunović et al., ICLR 2022, with a Gaussian prior."""

from leakscope.attacks.gaussian import Improbability, public_gaussian
from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import adam, cosine_decay, grey
from leakscope.attacks.registry import register_attack
from leakscope.attacks.terms import Match, Weighted
from leakscope.errors import BadInput
from leakscope.functional.distances import squared_l2


@register_attack("posterior", cites="balunovic2022")
def posterior(*, steps: int = 1000, noise: float = 0.01, lr: float = 0.2) -> Optimisation:
    """Squared distance in units of the noise, plus how improbable the image is, given public images' covariance.

    min ‖g(x) − g*‖²/2σ² + (x − μ)ᵀ Σ⁻¹ (x − μ)/2, from the mean image μ, in coordinates where Σ is I; ``noise`` is σ,
    the deviation in every entry that the server reckons with. For images of up to 4,096 values.
    """
    if not noise > 0:
        raise BadInput(f"noise is {noise}; it must be more than 0: without any, the prior would say nothing.")
    return Optimisation(
        terms=(
            Weighted(term=Match(squared_l2), weight=0.5 / noise**2),
            Weighted(term=Improbability(), weight=0.5),
        ),
        decode=public_gaussian,
        init=grey,  # u = 0: the mean of the public images
        optimiser=adam(lr),
        schedule=cosine_decay,
        steps=steps,
    )
