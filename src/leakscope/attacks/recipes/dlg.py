"""DLG: Zhu et al., NeurIPS 2019, and iDLG: Zhao et al., 2020."""

from typing import Literal

from leakscope.attacks.labels import LabelSource, idlg, joint
from leakscope.attacks.optimisation import Optimisation, Stop
from leakscope.attacks.parts import EvenGrey, lbfgs, normal
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.attacks.terms import Match, Weighted
from leakscope.functional.distances import relative_l2, squared_l2

Start = Literal["noise", "grey"]

_LEAKY = Leaky(
    model={"name": "leakscope:lenet-dlg", "image_size": 8, "num_classes": 10},
    options={"steps": 30, "population": 1},
    psnr=40,
)


@register_attack("dlg", cites="zhu2019", leaky=_LEAKY)
def deep_leakage(*, steps: int = 300, lr: float = 1.0, start: Start = "noise", relative: bool = False) -> Optimisation:
    """Squared distance of gradients, images and soft labels together, L-BFGS.

    ``start="grey"`` and ``relative``, which weighs layers alike, are not the paper's; on smooth networks they help.
    """
    return _leakage(joint, steps=steps, lr=lr, start=start, relative=relative)


@register_attack("idlg", cites="zhao2020", leaky=_LEAKY)
def improved_deep_leakage(
    *, steps: int = 300, lr: float = 1.0, start: Start = "noise", relative: bool = False
) -> Optimisation:
    """DLG with the label read off the classifier's gradient first; one image."""
    return _leakage(idlg, steps=steps, lr=lr, start=start, relative=relative)


def _leakage(labels: LabelSource, *, steps: int, lr: float, start: Start, relative: bool) -> Optimisation:
    """The authors' L-BFGS takes unchecked steps and loses many starts; with a line search, ours, they get through.

    They start from N(0, 1); an even grey is nearer to any picture, and gets there in a fraction of the time.
    """
    return Optimisation(
        terms=(Weighted(term=Match(relative_l2 if relative else squared_l2)),),
        labels=labels,
        init=EvenGrey() if start == "grey" else normal,
        optimiser=lbfgs(lr, line_search=True),
        stop=Stop(patience=20),
        steps=steps,
    )
