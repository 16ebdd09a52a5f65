"""Does the believed client, run on images that are known, send what was captured? And if not, which client does?

    error = ‖replayed − sent‖ / ‖sent‖      over all parameters that were sent

An attack on a client that was believed wrong finds nothing, and that must never be read as safe. So when the replay
disagrees, likely mistakes are looked for, greedily, up to three at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

from torch import Tensor

from leakscope.capture.search import Client, Guess, Hints, Search, improved, relative_error
from leakscope.client.fedsgd import FedSGD
from leakscope.models import VisionModel
from leakscope.types import Batch, Signal

__all__ = ["Client", "Hints", "Replay", "compare"]

_MISTAKES: Final = 3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The believed client's replay of known images against what was captured.

    ``error`` and ``tolerance`` decide whether they ``agree``. ``buffers`` is the same error for the running statistics,
    where both have them. If they disagree, ``mistakes`` are the changes to the belief that bring the error down to
    ``best``, reached by ``client``; ``explained`` says whether that is within tolerance.
    """

    error: float
    tolerance: float
    buffers: float | None = None
    mistakes: tuple[str, ...] = ()
    best: float = math.inf
    client: Client | None = None

    @property
    def agree(self) -> bool:
        return self.error <= self.tolerance and (self.buffers is None or self.buffers <= max(self.tolerance, 1e-4))

    @property
    def explained(self) -> bool:
        return not self.agree and self.best <= self.tolerance


def compare(
    sent: Mapping[str, Tensor],
    model: VisionModel,
    batch: Batch,
    client: Client,
    *,
    tolerance: float,
    buffers: Mapping[str, Tensor] | None = None,
    hints: Hints | None = None,
    explain: bool = True,
) -> Replay:
    """Replay ``client`` on ``batch`` at the model's weights and compare; on disagreement, ``explain`` it."""
    search, hints = Search(sent, model, batch), hints or Hints()
    straight = tuple(range(len(batch)))
    shared = replace(client, share_buffers=True) if buffers and client.mode == "train" else client
    first = search.replay(shared, straight)  # its errors are the caller's to see: this is the client that was asked for
    best = search.judge(client, straight, (), first)
    off = _buffers_error(buffers, first, model) if buffers else None
    found = Replay(error=best.error, tolerance=tolerance, buffers=off)
    if found.agree or not explain:
        return found
    if best.scale < 0 or isinstance(client, FedSGD):
        best = _scaled(best, tolerance)
    for _ in range(_MISTAKES):
        if best.error <= tolerance:
            break
        better = improved(search, best, len(batch), hints, tolerance)
        if better.error >= 0.999 * best.error:
            break
        best = better
    best = _scaled(best, tolerance)
    return replace(found, mistakes=best.mistakes, best=best.error, client=best.client)


def _scaled(guess: Guess, tolerance: float) -> Guess:
    """Where only the size (or the sign) is wrong, say so."""
    if guess.error <= tolerance or guess.shape_error > max(tolerance, 0.01):
        return guess
    what = "its sign is reversed, as of a gradient that is called a delta" if guess.scale < 0 else "clipped or scaled"
    text = f"what was sent is {guess.scale:.4g} times as large: {what}"
    return replace(guess, error=guess.shape_error, mistakes=(*guess.mistakes, text))


def _buffers_error(wanted: Mapping[str, Tensor], replayed: Signal, model: VisionModel) -> float | None:
    """The same error for how far the running statistics moved; ``None`` where the replay does not move any."""
    own = dict(model.named_buffers())
    names = [n for n in wanted if n in replayed and own[n].is_floating_point()]
    moved = {name: wanted[name] - own[name] for name in names}
    if not names or not any(bool(value.any()) for value in moved.values()):
        return None
    return relative_error(moved, {name: replayed[name] - own[name] for name in names})
