"""Flower's own apps and strategies, with their messages exchanged in this process."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import leakscope as ls
from leakscope.capture import check, load_update
from leakscope.capture.flower import CaptureMod, capture_strategy
from leakscope.capture.names import StateOrder

pytest.importorskip("flwr", reason="Flower is in the extra 'fl'")

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_capture.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flower_capture", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["flower_capture"] = module
    spec.loader.exec_module(module)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    return module


@pytest.fixture(scope="module")
def captured(example, tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("captures")
    return folder, example.simulate(folder, "inline")


def test_capturing_changes_no_bit_of_training(example, captured):
    plain, recorded = example.simulate(None, "inline"), captured[1]
    assert plain.keys() == recorded.keys()
    assert all(torch.equal(plain[name], recorded[name]) for name in plain)


def test_client_and_server_record_the_same(captured):
    folder = captured[0]
    mine = sorted((folder / "client").glob("round-*/client-*"))
    theirs = sorted((folder / "server").glob("round-*/client-*"))
    assert len(mine) == len(theirs) == 4
    for one, other in zip(mine, theirs, strict=True):  # partitions 0 and 1 are the nodes 1 and 2
        left, right = load_update(one), load_update(other)
        assert (left.round, left.metadata) == (right.round, right.metadata)
        assert left.metadata == {"lr": 0.05, "examples": 2, "steps": 1}
        for part in ("sent", "received"):
            a, b = getattr(left, part), getattr(right, part)
            assert a.keys() == b.keys()
            assert all(torch.equal(a[n], b[n]) for n in a)


def test_every_round_replays_and_the_first_is_reconstructed(example, captured):
    errors, psnr = example.audit(captured[0], steps=300)
    assert len(errors) == 4
    assert max(errors) <= 1e-5
    assert psnr > 24


def test_without_a_belief_the_capture_tells_it_all(example, captured):
    report = check(
        load_update(captured[0] / "client/round-0002/client-1"), example.new_model(), batch=example.photographs(1)
    )
    assert report.verified
    assert (report.inferred.mode, report.inferred.steps, report.inferred.lr) == ("train", 1, 0.05)


def test_a_capture_that_fails_does_not_stop_training(example, captured, tmp_path, caplog):
    (tmp_path / "client").write_text("in the way")
    with caplog.at_level("WARNING", logger="leakscope"):
        final = example.simulate(tmp_path, "inline")
    assert all(torch.equal(final[name], captured[1][name]) for name in final)
    assert not list((tmp_path / "client").parent.glob("client/*"))


def numpy_app(example: ModuleType, mods: list[Any]) -> Any:
    """A client of the older interface, which sends a bare list of arrays."""
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp

    class Client(NumPyClient):
        def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
            return [p + p.dtype.type(1) for p in parameters], 2, {}

    return ClientApp(client_fn=lambda context: Client().to_client(), mods=mods)


def test_arrays_without_names_get_those_of_the_state_dict(example, tmp_path):
    from flwr.app import Context, Message, MessageType, RecordDict
    from flwr.common import FitIns, ndarrays_to_parameters
    from flwr.compat.common.recorddict_compat import fitins_to_recorddict

    model = example.new_model()
    example.InlineGrid(None, 1)  # Flower wants to know whose process this is before it makes a message
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    content = fitins_to_recorddict(FitIns(ndarrays_to_parameters(list(state.values())), {"lr": 0.1}), keep_input=True)
    message = Message(content=content, message_type=MessageType.TRAIN, dst_node_id=5, group_id="7")
    context = Context(run_id=1, node_id=5, node_config={}, state=RecordDict(), run_config={})
    numpy_app(example, [CaptureMod(tmp_path, model)])(message, context)
    update = load_update(tmp_path / "round-0007" / "client-5")
    assert update.metadata == {"lr": 0.1, "examples": 2}
    for name, value in state.items():
        assert torch.equal(update.received[name], torch.from_numpy(np.array(value)))
        assert torch.equal(update.sent[name], torch.from_numpy(np.array(value + value.dtype.type(1))))


def test_the_order_of_bare_arrays_is_checked_by_shape(example):
    model = example.new_model()
    order = StateOrder.of(model)
    arrays = [value.numpy() for value in model.state_dict().values()]
    numbered = {str(i): a for i, a in enumerate(arrays)}
    assert set(order.named(numbered)) == set(model.state_dict())
    trained = {str(i): p.detach().numpy() for i, (_, p) in enumerate(model.named_parameters())}
    assert set(order.named(trained)) == {name for name, _ in model.named_parameters()}
    with pytest.raises(ls.BadInput, match="order of the model's state"):
        order.named({str(i): a for i, a in enumerate(reversed(arrays))})
    with pytest.raises(ls.BadInput, match="without names"):
        order.named({str(i): a for i, a in enumerate(arrays[:3])})


def test_strategies_of_the_older_kind(example, tmp_path):
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server.strategy import FedAvg

    model = example.new_model()
    state = [value.numpy() for value in model.state_dict().values()]

    class Proxy:
        cid = "3"

    class Manager:
        def num_available(self) -> int:
            return 1

        def sample(self, **_: Any) -> list[Any]:
            return [Proxy()]

    def run(strategy: Any) -> list[np.ndarray]:
        given = strategy.configure_fit(1, ndarrays_to_parameters(state), Manager())
        assert isinstance(given[0][1], FitIns)
        moved = ndarrays_to_parameters([a + a.dtype.type(1) for a in state])
        result = FitRes(status=Status(Code.OK, ""), parameters=moved, num_examples=2, metrics={})
        return parameters_to_ndarrays(strategy.aggregate_fit(1, [(given[0][0], result)], [])[0])

    strategy = FedAvg(min_fit_clients=1, min_available_clients=1)
    plain, recorded = run(strategy), run(capture_strategy(strategy, tmp_path, model))
    assert all(np.array_equal(a, b) for a, b in zip(plain, recorded, strict=True))
    update = load_update(tmp_path / "round-0001" / "client-3")
    assert update.metadata == {"examples": 2}
    assert torch.equal(update.sent["0.weight"], model.state_dict()["0.weight"] + 1)
    assert "configure_fit" not in vars(strategy)  # the one that was handed in stays as it was


def test_what_is_no_strategy_is_refused(example, tmp_path):
    with pytest.raises(ls.BadInput, match="no Flower strategy"):
        capture_strategy(object(), tmp_path, example.new_model())
