"""The feasibility study's attack: Valadi et al., 2025."""

from dataclasses import replace
from typing import Final, cast

from leakscope.attacks.optimisation import Optimisation
from leakscope.attacks.parts import Filter
from leakscope.attacks.recipes.inverting_gradients import inverting_gradients
from leakscope.attacks.registry import Leaky, register_attack
from leakscope.attacks.terms import BatchStatistics, Match, Weighted
from leakscope.attacks.terms.statistics import Source
from leakscope.attacks.views import WithStatistics
from leakscope.functional.distances import cosine

__all__ = ["LEAKY", "feasibility", "with_statistics"]


# No BatchNorm network gives way in train mode within seconds: the self-test is of the loop, not of the statistics.
LEAKY: Final = Leaky(
    model={"name": "leakscope:mlp?hidden=64&activation=tanh", "image_size": 8, "num_classes": 10},
    client={"type": "fedsgd", "mode": "train"},
    options={"steps": 400, "population": 1, "statistics": "auto"},
    psnr=20,
)


@register_attack("feasibility", cites="valadi2025", leaky=LEAKY)
def feasibility(
    *,
    steps: int = 10_000,
    tv: float = 0.052,
    bn: float = 1.6e-4,
    lr: float = 0.1,
    statistics: Source = "auto",
    relative: bool = False,
    largest: int | None = None,
    median_every: int | None = None,
) -> Optimisation:
    """Inverting Gradients for train mode: normalisation statistics are matched, the batch's own where they can be had.

    ``statistics``: exact (from shared buffers), proxy (from public batches), running (the model's own), or auto, the
    first of these that can be had; ``relative``: in units of each layer's own deviation. ``largest``: match only the so
    many gradients of largest norm (the study: 10). ``median_every``: a 3×3 median filter once in so many steps (the
    study: 500).
    """
    made = with_statistics(steps=steps, tv=tv, bn=bn, lr=lr, statistics=statistics, relative=relative)
    match = Weighted(term=Match(cosine, largest=largest))
    smooth = None if median_every is None else Filter(every=median_every)
    return replace(made, terms=(match, *made.terms[1:]), filter=smooth)


def with_statistics(
    *, steps: int, tv: float, bn: float, lr: float, statistics: Source, relative: bool = False
) -> Optimisation:
    """Inverting Gradients with a term for normalisation statistics, and a word in the evidence on which they were."""
    made = cast(Optimisation, inverting_gradients(steps=steps, tv=tv, lr=lr))
    term = Weighted(term=BatchStatistics(statistics=statistics, relative=relative), weight=bn)
    return replace(made, terms=(*made.terms, term), view=WithStatistics(statistics))
