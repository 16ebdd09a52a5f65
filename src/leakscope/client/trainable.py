"""Which parameters a client trains: all, or those whose names match patterns such as ``head.*``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from leakscope.errors import BadInput
from leakscope.models import VisionModel

__all__ = ["trainable_names"]


def trainable_names(model: VisionModel, patterns: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the parameters that are trained, in the model's order: those not frozen that match a pattern.

    Without patterns all that are not frozen. A pattern that matches nothing is refused: it would train less than was
    meant.
    """
    if isinstance(patterns, str):
        raise BadInput(f"trainable takes a list of name patterns; got the text '{patterns}'. Write ('{patterns}',).")
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            every = [name for name, _ in model.named_parameters()]
            frozen = next((name for name in every if fnmatchcase(name, pattern)), None)
            if frozen is not None:
                raise BadInput(f"trainable '{pattern}' matches only frozen parameters of {model.name}, as '{frozen}'.")
            near = difflib.get_close_matches(pattern.strip("*."), every, n=3, cutoff=0.2) or every[-3:]
            raise BadInput(f"trainable '{pattern}' matches no parameter of {model.name}. Nearest: {', '.join(near)}.")
    return tuple(name for name in names if not patterns or any(fnmatchcase(name, p) for p in patterns))
