"""How leakage falls as the batch grows."""

from collections.abc import Iterator

from leakscope.audit.images import pieces
from leakscope.audit.study import Point, Setup, register_study


@register_study("batch-size", x="batch size")
def batch_size(setup: Setup) -> Iterator[Point]:
    """Batches of 1, 2, 4, … of the images, up to all of them."""
    size, sizes = 1, []
    while size < len(setup.batch):
        sizes.append(size)
        size *= 2
    for size in [*sizes, len(setup.batch)]:
        yield Point(at={"batch size": size}, case=setup.case(batch=pieces(setup.batch, size)[0]))
