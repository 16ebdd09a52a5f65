"""TAG: Deng et al., Findings of EMNLP 2021."""

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import adamw, cosine_decay
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.attacks.terms import Match, TagDistance, Weighted


@register_attack(
    "tag",
    cites="deng2021",
    leaky=Leaky(
        model={"name": "leakscope:lenet-dlg", "image_size": 8, "num_classes": 10},
        options={"steps": 400, "population": 1},
        psnr=40,
    ),
)
def tag(*, steps: int = 1000, lr: float = 0.05, alpha: float = 0.1, decay: float = 1.0) -> Optimisation:
    """Squared plus weighted absolute distance, early layers weighing most, AdamW.

    The paper publishes neither the weights nor the rate for images: α, the depth decay and the schedule are ours.
    """
    return Optimisation(
        terms=(Weighted(term=Match(TagDistance(alpha=alpha, decay=decay))),),
        optimiser=adamw(lr),
        schedule=cosine_decay,
        steps=steps,
    )
