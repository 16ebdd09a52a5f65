"""GradViT: Hatamizadeh et al., CVPR 2022."""

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import adam, cosine_decay
from leakscope.attacks.recipes._statistics import statistics_of
from leakscope.attacks.registration import Alignment
from leakscope.attacks.registry import register_attack
from leakscope.attacks.schedules import GRADIENT, IMAGE
from leakscope.attacks.terms import ImageNorm, Match, TotalVariation, Weighted
from leakscope.attacks.terms.group import GroupConsistency
from leakscope.attacks.terms.patch_joints import PatchJoints
from leakscope.functional.distances import squared_l2
from leakscope.functional.priors import total_variation_l2
from leakscope.models.image_prior import DEFAULT


@register_attack("gradvit", cites="hatamizadeh2022")
def gradvit(
    *,
    steps: int = 120_000,
    lr: float = 0.1,
    matching: float = 4e-3,
    image: float = 2e-1,
    patch: float = 1e-4,
    group: float = 1e-2,
    prior: float = 1e-4,
    network: str = DEFAULT,
    weights: str | None = None,
    align: Alignment = "shift",
) -> Optimisation:
    """Matching first; from half-time on another network's statistics; patch joints, a registered group, l2 and TV.

    Γ·L_grad + Υ·R_image + α₁ R_patch + α₂ R_reg + α₃ (R_l2 + R_TV) with the paper's constants. A term of weight 0 is
    left out. The paper's prior is a MoCo-v2 ResNet-50: ``network="torchvision:resnet50"`` with its file as ``weights``.
    It does not say how many seeds make a group: two here, ``population`` for more.
    """
    terms = (
        Weighted(term=Match(squared_l2), weight=matching, schedule=GRADIENT),
        Weighted(term=statistics_of(network, weights), weight=image, schedule=IMAGE),
        Weighted(term=PatchJoints(), weight=patch),
        Weighted(term=GroupConsistency(align=align), weight=group),
        Weighted(term=ImageNorm(), weight=prior),
        Weighted(term=TotalVariation(total_variation_l2), weight=prior),
    )
    return Optimisation(
        terms=tuple(term for term in terms if term.weight),
        optimiser=adam(lr),
        schedule=cosine_decay,
        population=2,
        steps=steps,
    )
