"""Flower: record what crosses the wire, at the client (``CaptureMod``) or at the server (``capture_strategy``).

Both only look: messages go on as they came, and a capture that fails is logged, not raised. Nothing here imports
Flower: messages and strategies are used as they are.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar, final

import numpy as np

from leakscope.capture.names import Arrays, StateOrder
from leakscope.capture.update import Fact, Kind, Update, save_in_round
from leakscope.errors import BadInput
from leakscope.models import VisionModel
from leakscope.models.text import as_names

__all__ = ["CaptureMod", "Half", "capture_strategy", "is_train", "made_update"]

log = logging.getLogger(__name__)

S = TypeVar("S")

_TRAIN: Final = "train"
_ARRAYS: Final = ("arrays", "fitins.parameters", "fitres.parameters")
# What the world calls the facts that a check and an attack can use.
_FACTS: Final = {
    "lr": "lr",
    "learning-rate": "lr",
    "steps": "steps",
    "local-steps": "steps",
    "batch-size": "batch_size",
    "num-examples": "examples",
    "server-round": "round",
}


@final
class CaptureMod:
    """A client mod: ``ClientApp(…, mods=[CaptureMod("captures", model)])``.

    Writes one update per training round to ``folder/round-0001/client-0``. Put it first in the list of mods: then it
    sees what really leaves, after all others. ``model`` gives names to arrays that have none (a ``NumPyClient`` sends
    a bare list). ``kind`` says what the client replies with.
    """

    def __init__(self, folder: Path | str, model: VisionModel, *, kind: Kind = "weights") -> None:
        self._recorder = _Recorder(Path(folder), StateOrder.of(model), kind, "flower client mod")

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not is_train(message):
            return call_next(message, context)
        client = client_of(context)
        # Before the client runs: Flower takes a message apart while it hands it over.
        received = self._recorder.look(message, client)
        reply = call_next(message, context)
        self._recorder.write(received, self._recorder.look(reply, client), client)
        return reply


def capture_strategy(strategy: S, folder: Path | str, model: VisionModel, *, kind: Kind = "weights") -> S:
    """The same strategy, recording every client's reply in every training round below ``folder``.

    It is a shallow copy of ``strategy`` with two methods wrapped, so whatever else the strategy does, it still does.
    Works for message-based strategies (``flwr.serverapp.strategy``) and for those of ``flwr.server.strategy``.
    """
    recorder = _Recorder(Path(folder), StateOrder.of(model), kind, "flower strategy")
    recording: Any = copy.copy(strategy)
    if hasattr(strategy, "configure_train"):
        _wrap_messages(recording, recorder)
    elif hasattr(strategy, "configure_fit"):
        _wrap_fit(recording, recorder)
    else:
        raise BadInput(
            f"A {type(strategy).__name__} is no Flower strategy: it has no configure_train or configure_fit."
        )
    return recording


def is_train(message: Any) -> bool:
    """Whether a message asks for training."""
    return str(message.metadata.message_type).partition(".")[0] == _TRAIN


def client_of(context: Any) -> str:
    """The client's partition in a simulation, else its node."""
    return str(getattr(context, "node_config", {}).get("partition-id", getattr(context, "node_id", "")))


@dataclass(frozen=True, slots=True)
class Half:
    """One direction of a round: the arrays, and the facts that were told with them."""

    arrays: Arrays
    facts: Mapping[str, Fact]

    @staticmethod
    def of(message: Any) -> Half:
        """What a message holds; Flower reads arrays without pickle."""
        if message.has_error():
            raise BadInput("the message is an error, and holds no arrays.")
        content = message.content
        records = content.array_records
        chosen = [key for key in _ARRAYS if key in records] or list(records)
        if len(chosen) != 1:
            raise BadInput(f"the message holds {len(chosen)} array records ({as_names(chosen)}), not one.")
        facts: dict[str, Fact] = {}
        number = str(getattr(message.metadata, "group_id", ""))
        if number.isdecimal():
            facts["round"] = int(number)
        for record in (*content.config_records.values(), *content.metric_records.values()):
            facts |= _facts(record)
        # Copies: what is kept must not change when the client writes into its arrays.
        return Half({key: np.array(array.numpy()) for key, array in records[chosen[0]].items()}, facts)


def made_update(received: Half, sent: Half, order: StateOrder, *, client: str, source: str, kind: Kind) -> Update:
    """The update that a training message and the reply to it make."""
    facts = {**received.facts, **sent.facts}
    number = facts.pop("round", None)
    return Update(
        kind=kind,
        sent=order.named(sent.arrays),
        received=order.named(received.arrays),
        round=int(number) if isinstance(number, int | float) else None,
        client=client,
        source=source,
        metadata=facts,
    )


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Writes updates. Training must not stop for that, so whatever goes wrong is said in the log."""

    folder: Path
    order: StateOrder
    kind: Kind
    source: str

    def look(self, message: Any, client: str) -> Half | None:
        try:
            return Half.of(message)
        except Exception as error:
            log.warning("A message of client %s was not captured: %s", client, error)
            return None

    def write(self, received: Half | None, sent: Half | None, client: str) -> None:
        if received is None or sent is None:
            return
        try:
            update = made_update(received, sent, self.order, client=client, source=self.source, kind=self.kind)
            save_in_round(update, self.folder)
        except Exception as error:
            log.warning("The update of client %s was not captured: %s", client, error)


def _wrap_messages(strategy: Any, recorder: _Recorder) -> None:
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    sent_out: dict[int, Half | None] = {}

    def configure_train(server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        messages = list(configure(server_round, arrays, config, grid))
        sent_out.clear()
        for message in messages:
            node = message.metadata.dst_node_id
            sent_out[node] = recorder.look(message, str(node))
        return messages

    def aggregate_train(server_round: int, replies: Iterable[Any]) -> Any:
        kept = list(replies)
        for reply in kept:
            node = reply.metadata.src_node_id
            recorder.write(sent_out.get(node), recorder.look(reply, str(node)), str(node))
        return aggregate(server_round, kept)

    strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train


def _wrap_fit(strategy: Any, recorder: _Recorder) -> None:
    configure, aggregate = strategy.configure_fit, strategy.aggregate_fit
    sent_out: dict[str, Half | None] = {}

    def look(parameters: Any, facts: Mapping[str, Fact], client: str) -> Half | None:
        try:
            arrays = [np.load(BytesIO(raw), allow_pickle=False) for raw in parameters.tensors]
            return Half({str(index): array for index, array in enumerate(arrays)}, facts)
        except Exception as error:
            log.warning("A message of client %s was not captured: %s", client, error)
            return None

    def configure_fit(server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        instructions = list(configure(server_round, parameters, client_manager))
        sent_out.clear()
        for proxy, instruction in instructions:
            facts: dict[str, Fact] = {**_facts(instruction.config), "round": server_round}
            sent_out[proxy.cid] = look(instruction.parameters, facts, proxy.cid)
        return instructions

    def aggregate_fit(server_round: int, results: list[Any], failures: list[Any]) -> Any:
        for proxy, result in results:
            facts: dict[str, Fact] = {"examples": int(result.num_examples)}
            recorder.write(sent_out.get(proxy.cid), look(result.parameters, facts, proxy.cid), str(proxy.cid))
        return aggregate(server_round, results, failures)

    strategy.configure_fit, strategy.aggregate_fit = configure_fit, aggregate_fit


def _facts(record: Mapping[str, Any]) -> dict[str, Fact]:
    """The facts of a configuration or of metrics that are known by some name."""
    found: dict[str, Fact] = {}
    for key, value in record.items():
        name = _FACTS.get(key.replace("_", "-"))
        if name is not None and isinstance(value, int | float) and np.isfinite(value):
            found[name] = value
    return found
