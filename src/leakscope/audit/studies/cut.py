"""Where a model is split between device and server: what the features at each cut still show."""

from collections.abc import Iterator

from torch import nn

from leakscope.audit.study import Point, Setup, register_study
from leakscope.client.split import Split
from leakscope.errors import NotApplicable
from leakscope.models import VisionModel

MOST = 8


@register_study("cut", x="cut")
def cut(setup: Setup) -> Iterator[Point]:
    """The features at up to eight cuts through the model, from the input to the head, inverted one by one."""
    places = cuts(setup.model)
    if not places:
        raise NotApplicable(f"No module of {setup.model.name} to cut at was found.")
    for depth, place in enumerate(places, start=1):
        yield Point(at={"cut": f"{depth} {place}"}, case=setup.case(client=Split(cut=place)))


def cuts(model: VisionModel) -> list[str]:
    """Blocks where the anatomy knows them, else layers that compute, evenly thinned to :data:`MOST`."""
    places = list(model.anatomy.blocks)
    if len(places) < 2:
        places = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    if len(places) <= MOST:
        return places
    return [places[round(i * (len(places) - 1) / (MOST - 1))] for i in range(MOST)]
