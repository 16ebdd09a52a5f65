"""The gate as a mod of a real Flower client app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import leakscope as ls
from leakscope.client.fedavg import FedAvg
from leakscope.client.local_optimisers import Sgd
from leakscope.gate import Policy
from leakscope.gate.flower import WITHHELD, GateMod

pytest.importorskip("flwr", reason="Flower is in the extra 'fl'")

CLIENT = FedAvg(steps=1, optimiser=Sgd(lr=0.05), mode="train", share="weights")


def model() -> ls.VisionModel:
    return ls.load_model("leakscope:mlp?hidden=16", image_size=16, num_classes=10, seed=0)


def images(context: Any) -> ls.Batch:
    return ls.bundled_batch(["cat"], size=16)


def answer(mods: list[Any], kind: str = "train") -> Any:
    """A client app with these mods, asked once."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    app = ClientApp(mods=mods)

    def train(message: Message, context: Context) -> Message:
        net, batch = model(), images(context)
        net.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.module.train()
        optimiser = torch.optim.SGD(net.module.parameters(), lr=0.05)
        cross_entropy(net(batch.images), batch.labels).backward()
        optimiser.step()
        content = {"arrays": ArrayRecord(net.module.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    app.train()(train)
    app.evaluate()(train)
    start = RecordDict({"arrays": ArrayRecord(model().module.state_dict())})
    context = Context(run_id=1, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config={})
    return app(Message(start, dst_node_id=1, message_type=kind), context)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_leaking_update_does_not_leave(tmp_path):
    patient = Policy(seconds=600.0)
    reply = answer([GateMod(model(), images, client=CLIENT, policy=patient, log_to=tmp_path / "gate.jsonl")])
    assert reply.has_error()
    assert not reply.has_content()
    # The server learns that it was withheld, and nothing else.
    assert (reply.error.code, reply.error.reason) == (WITHHELD, "withheld")
    (line,) = lines(tmp_path / "gate.jsonl")
    assert line["reason"] == "images came out"
    assert line["training_seconds"] > 0
    assert line["share_of_training"] == pytest.approx(line["seconds"] / line["training_seconds"])


def test_what_may_leave_leaves_unchanged(tmp_path):
    lax = Policy(thresholds={"psnr": 1000.0}, steps=2, seconds=600.0)
    sent = answer([GateMod(model(), images, client=CLIENT, policy=lax, log_to=tmp_path / "gate.jsonl")])
    plain = answer([])
    a, b = (r.content["arrays"].to_torch_state_dict() for r in (sent, plain))
    assert all(torch.equal(a[n], b[n]) for n in b)
    assert lines(tmp_path / "gate.jsonl")[0]["send"] is True


def test_only_training_is_gated():
    assert not answer([GateMod(model(), images, client=CLIENT)], kind="evaluate").has_error()


@pytest.mark.parametrize("fault", ["images", "model", "log"])
def test_it_fails_closed(tmp_path, fault):
    def broken(context: Any) -> ls.Batch:
        raise OSError("no such disk")

    lax = Policy(thresholds={"psnr": 1000.0}, steps=2, seconds=600.0)
    other = ls.load_model("leakscope:lenet-dlg", num_classes=10)
    (tmp_path / "file").write_text("")
    reply = answer(
        [
            GateMod(
                other if fault == "model" else model(),
                broken if fault == "images" else images,
                client=CLIENT,
                policy=lax,
                log_to=tmp_path / "file" / "below" if fault == "log" else tmp_path / "gate.jsonl",
            )
        ]
    )
    assert reply.has_error()
    assert reply.error.reason == "withheld"
