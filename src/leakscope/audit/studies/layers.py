"""Which layers' gradients leak: each part shared alone, each part withheld."""

from collections.abc import Iterator, Mapping

from leakscope.audit.study import Point, Setup, register_study
from leakscope.client.registry import defence
from leakscope.models import VisionModel
from leakscope.types import Knows

ALL = "all"


@register_study("layers", x="part", series="shared")
def layers(setup: Setup) -> Iterator[Point]:
    """The gradients of the blocks in thirds, of the input and of the head: each alone, and all but each.

    GradViT's Table 4 for any model: its blocks in thirds (a ViT-B's blocks 1–4, 5–8, 9–12).
    """
    yield from parts_of_gradient(setup, thirds(setup.model))


def parts_of_gradient(setup: Setup, parts: Mapping[str, list[str]]) -> Iterator[Point]:
    """Each part of the gradient shared alone and withheld, by a server that knows what is missing."""
    names = [name for name, p in setup.model.named_parameters() if p.requires_grad]
    threat = setup.threat.plus(Knows.DEFENCE)
    yield Point(at={"part": ALL, "shared": "everything"}, case=setup.case())
    for part, members in parts.items():
        rest = [name for name in names if name not in set(members)]
        for shared, withheld in (("only this", rest), ("all but this", members)):
            if 0 < len(withheld) < len(names):
                hidden = defence("withhold", what=tuple(withheld))
                yield Point(at={"part": part, "shared": shared}, case=setup.case(defences=(hidden,), threat=threat))


def thirds(model: VisionModel) -> dict[str, list[str]]:
    """Parameter names by where they sit: input, the blocks in thirds, head."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    blocks = list(model.anatomy.blocks)
    owner = {n: i for n in names for i, block in enumerate(blocks) if n.startswith(block + ".")}
    found: dict[str, list[str]] = {}
    inside = [n for n in names if n in owner]
    first, last = (
        (names.index(inside[0]), names.index(inside[-1])) if inside else (len(names) // 3, 2 * len(names) // 3)
    )
    size = max(1, -(-len(blocks) // 3))
    for index, name in enumerate(names):
        if name in owner:
            start = owner[name] // size * size
            end = min(start + size, len(blocks))
            part = f"blocks {start + 1}–{end}" if end > start + 1 else f"block {end}"
        elif not inside:
            part = ("first third", "middle third", "last third")[min(2, 3 * index // len(names))]
        else:
            part = "input" if index < first else "head" if index > last else "between"
        found.setdefault(part, []).append(name)
    return found
