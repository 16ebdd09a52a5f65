"""The gate as a Flower client mod."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import torch

from leakscope.capture.flower import Half, client_of, is_train, made_update
from leakscope.capture.names import StateOrder
from leakscope.capture.replay import Client
from leakscope.capture.update import Kind
from leakscope.errors import MissingExtra
from leakscope.gate.decide import Decision, Policy, Reason, gate
from leakscope.models import VisionModel
from leakscope.types import Batch

__all__ = ["WITHHELD", "GateMod"]

log = logging.getLogger(__name__)

WITHHELD: Final = 3
"""The code of the error that is sent in place of an update."""


@final
class GateMod:
    """A client mod that keeps an update back when it would give the client's images away.

    ``images`` hands over the client's own images for a Flower context. In place of a withheld update the server gets
    an error that says nothing but "withheld": not why, nor how much came out. The reason goes to ``log_to``, a file of
    JSON lines on the client, with the time that the gate took beside that of the training it guards. ``model``,
    ``client``, ``policy`` and ``kind`` are as for :func:`gate` and ``CaptureMod``.

    It belongs at the front of the list of mods, where it sees what really leaves, after mods that clip or add noise.
    """

    def __init__(
        self,
        model: VisionModel,
        images: Callable[[Any], Batch],
        *,
        client: Client | None = None,
        policy: Policy | None = None,
        log_to: Path | str | None = None,
        kind: Kind = "weights",
        seed: int = 0,
    ) -> None:
        self._model, self._images, self._client, self._seed = model, images, client, seed
        self._kind: Kind = kind
        self._policy = policy or Policy()
        self._log = Path(log_to) if log_to is not None else None

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not is_train(message):
            return call_next(message, context)
        try:
            received = Half.of(message)
        except Exception:
            log.debug("the message could not be read", exc_info=True)
            received = None
        began = time.monotonic()
        reply = call_next(message, context)
        trained = time.monotonic() - began
        if reply.has_error():
            return reply
        decision = self._decide(received, reply, context)
        try:
            self._write(decision, trained, client_of(context))
        except OSError:
            # A gate whose log cannot be written is not doing its job.
            log.exception("the gate's log cannot be written")
            return _withheld(message)
        return reply if decision.send else _withheld(message)

    def _decide(self, received: Half | None, reply: Any, context: Any) -> Decision:
        try:
            if received is None:
                return Decision(send=False, reason=Reason.FAILED, detail="the server's message could not be read")
            order = StateOrder.of(self._model)
            update = made_update(
                received, Half.of(reply), order, client=client_of(context), source="gate", kind=self._kind
            )
            batch = self._images(context)
            generator = torch.Generator().manual_seed(self._seed)
            return gate(update, self._model, batch, client=self._client, policy=self._policy, generator=generator)
        except Exception as error:
            log.debug("the gate failed", exc_info=True)
            return Decision(send=False, reason=Reason.FAILED, detail=type(error).__name__)

    def _write(self, decision: Decision, trained: float, client: str) -> None:
        if self._log is None:
            return
        share = decision.seconds / trained if trained > 0 else None
        line = {**decision.to_json(), "client": client, "training_seconds": trained, "share_of_training": share}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _withheld(message: Any) -> Any:
    try:
        from flwr.app import Error, Message
    except ImportError as error:
        raise MissingExtra("The Flower mod", "fl") from error
    return Message(Error(WITHHELD, "withheld"), reply_to=message)
