"""Clients in train mode, with what was found to matter there: the units of the statistics, and where one searches."""

from dataclasses import replace

from leakscope.attacks.decoders import pink
from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import EvenGrey
from leakscope.attacks.recipes.feasibility import LEAKY, with_statistics
from leakscope.attacks.registry import register_attack
from leakscope.attacks.terms.statistics import Source


@register_attack("train-mode", cites="valadi2025", leaky=LEAKY)
def train_mode(
    *, steps: int = 500, tv: float = 1e-3, bn: float = 0.1, lr: float = 0.1, statistics: Source = "auto"
) -> Optimisation:
    """The feasibility study's attack with statistics in units of each layer's deviation, by frequency, from grey.

    The three changes are ours. As published, statistics count by their size, which leaves all but the widest layers
    alone, and a search by pixels stays noise for thousands of steps.
    """
    made = with_statistics(steps=steps, tv=tv, bn=bn, lr=lr, statistics=statistics, relative=True)
    return replace(made, decode=pink, init=EvenGrey())
