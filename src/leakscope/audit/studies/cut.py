"""Where a model is split between device and server: what the features at each cut still show."""

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from leakscope.audit.study import Point, Setup, register_study
from leakscope.client.split import Split
from leakscope.errors import NotApplicable
from leakscope.models import VisionModel

MOST = 8


@register_study("cut", x="cut", ordered=True)
def cut(setup: Setup) -> Iterator[Point]:
    """The features at up to eight cuts through the model, from the input to the head, inverted one by one.

    With a client that is split already, the cuts are its own, several parted by commas: ``conv1,conv2``.
    """
    own = setup.client if isinstance(setup.client, Split) else None
    places = cuts(setup.model) if own is None else [place.strip() for place in own.cut.split(",")]
    if not places:
        raise NotApplicable(f"No module of {setup.model.name} to cut at was found.")
    clients = [Split(cut=place) if own is None else replace(own, cut=place) for place in places]
    clients.sort(key=lambda one: len(one.called(setup.model)))
    for depth, one in enumerate(clients, start=1):
        yield Point(at={"cut": f"{depth} {one.cut}"}, case=setup.case(client=one))


def cuts(model: VisionModel) -> list[str]:
    """Blocks where the anatomy knows them, else layers that compute, evenly thinned to :data:`MOST`."""
    places = list(model.anatomy.blocks)
    if len(places) < 2:
        places = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    if len(places) <= MOST:
        return places
    return [places[round(i * (len(places) - 1) / (MOST - 1))] for i in range(MOST)]
