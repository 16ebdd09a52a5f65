"""NVFlare: a filter at the client that records what crosses the wire.

    capture = CaptureFilter("captures")
    job.to(capture, "site-1", tasks=["train"], filter_type=FilterType.TASK_DATA)
    job.to(capture, "site-1", tasks=["train"], filter_type=FilterType.TASK_RESULT)

Put it last among the filters of results: then it sees what really leaves, after privacy filters. It only looks: what it
is handed goes on as it came, and a capture that fails is logged, not raised.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from leakscope.capture.update import Fact, Kind, Update, save_in_round
from leakscope.errors import BadInput, MissingExtra

try:
    _filter: Any = importlib.import_module("nvflare.apis.filter")
    _dxo: Any = importlib.import_module("nvflare.apis.dxo")
except ImportError as error:
    raise MissingExtra("Capturing updates from NVFlare", "nvflare") from error

__all__ = ["CaptureFilter"]

log = logging.getLogger(__name__)

_KINDS: Final[Mapping[str, Kind]] = {"WEIGHTS": "weights", "WEIGHT_DIFF": "delta"}
_RECEIVED: Final = "leakscope-received"
_DIRECTION: Final = "__filter_dir__"
_ROUND: Final = "current_round"
_STEPS: Final = "NUM_STEPS_CURRENT_ROUND"


@final
class CaptureFilter(_filter.Filter):  # pyright: ignore[reportUntypedBaseClass]
    """Writes one update per training round to ``folder/round-0001/client-SITE``."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder  # public, and by its own name: a job is exported by reading it back

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Look at ``shareable`` on its way in (the server's model) or out (the client's reply), and hand it on."""
        site = str(fl_ctx.get_identity_name() or "")
        try:
            if fl_ctx.get_prop(_DIRECTION) == "in":
                fl_ctx.set_prop(_RECEIVED, _tensors(shareable)[1], private=True, sticky=True)
            else:
                self._write(shareable, fl_ctx, site)
        except Exception as error:  # training must not stop for a capture
            log.warning("The update of client %s was not captured: %s", site, error)
        return shareable

    def _write(self, shareable: Any, fl_ctx: Any, site: str) -> None:
        kind, sent = _tensors(shareable)
        number = shareable.get_header(_ROUND)
        facts: dict[str, Fact] = {}
        steps = _dxo.from_shareable(shareable).get_meta_prop(_STEPS)
        if isinstance(steps, int | float) and steps > 0:
            facts["steps"] = int(steps)
        update = Update(
            kind=kind,
            sent=sent,
            received=fl_ctx.get_prop(_RECEIVED) or {},
            round=None if number is None else int(number),
            client=site,
            source="nvflare filter",
            metadata=facts,
        )
        save_in_round(update, Path(self.folder))


def _tensors(shareable: Any) -> tuple[Kind, dict[str, Tensor]]:
    """What a message holds, copied: what is kept must not change when the client writes into its arrays."""
    found = _dxo.from_shareable(shareable)
    kind = _KINDS.get(str(getattr(found.data_kind, "value", found.data_kind)))
    if kind is None:
        raise BadInput(f"its data are {found.data_kind}; captured are {', '.join(_KINDS)}.")
    data: Mapping[str, Any] = found.data
    return kind, {
        name: value.detach().cpu().clone() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        for name, value in data.items()
    }
