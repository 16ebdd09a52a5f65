"""Gradient matching by least squares: Levenberg 1944 and Marquardt 1963, on Deep Leakage's objective."""

from typing import Literal

from leakscope.attacks.optimisation import Optimisation, Stop
from leakscope.attacks.parts import EvenGrey
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.attacks.second_order import LevenbergMarquardt
from leakscope.attacks.terms import Match, Weighted
from leakscope.functional.distances import relative_l2, squared_l2


@register_attack(
    "gauss-newton",
    cites="marquardt1963",
    leaky=Leaky(
        model={"name": "leakscope:lenet-dlg", "image_size": 8, "num_classes": 10},
        options={"steps": 12, "population": 1},
        psnr=40,
    ),
)
def gauss_newton(
    *,
    steps: int = 30,
    solver: Literal["auto", "dense", "cg"] = "auto",
    relative: bool = True,
    damping: float = 1e-2,
    iterations: int = 100,
    grey: float = 0.5,
    kinks: bool = False,
) -> Optimisation:
    """Squared distance of gradients by Levenberg–Marquardt, from an almost even grey; for smooth networks.

    A step costs as much as hundreds of first-order ones, and few are needed. ``relative``: each layer's distance is
    taken relative to its observed norm. ``grey``: the level to start from; pictures that are mostly dark, such as
    digits, want 0.1. From N(0, 1), where first-order recipes start, the linear model misleads.
    """
    return Optimisation(
        terms=(Weighted(term=Match(relative_l2 if relative else squared_l2)),),
        optimiser=LevenbergMarquardt(solver=solver, damping=damping, iterations=iterations, kinks=kinks),
        init=EvenGrey(level=grey),
        stop=Stop(patience=2, target=1e-10 if relative else None),  # 1e-5 of the gradient: rounding is near
        steps=steps,
    )
