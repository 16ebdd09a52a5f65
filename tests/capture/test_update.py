"""Updates are written and read back bit for bit, and turned into observations by the rules of ``observe``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clients import photographs, small_model, trained
from safetensors.torch import save_file

import leakscope as ls
from leakscope.capture import Update, load_update, save_update, to_observation, update_from_files
from leakscope.client.fedavg import FedAvg
from leakscope.client.local_optimisers import Sgd
from leakscope.types import Knows


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    update = replace(trained(small_model(), photographs()), round=3, client="7", source="test", metadata={"lr": 0.05})
    halved = replace(update, sent={**update.sent, "0.weight": update.sent["0.weight"].bfloat16()})
    for index, one in enumerate((update, halved)):
        back = load_update(save_update(one, tmp_path / str(index)))
        assert (back.kind, back.round, back.client, back.source, back.metadata) == (
            "weights",
            3,
            "7",
            "test",
            {"lr": 0.05},
        )
        for part in ("sent", "received"):
            kept, read = getattr(one, part), getattr(back, part)
            assert set(kept) == set(read)
            assert all(torch.equal(kept[n], read[n]) and kept[n].dtype == read[n].dtype for n in kept)


def test_a_capture_is_never_overwritten(tmp_path):
    update = trained(small_model(), photographs())
    save_update(update, tmp_path / "a")
    with pytest.raises(ls.BadInput, match="never overwritten"):
        save_update(update, tmp_path / "a")


def test_tied_tensors_can_be_saved(tmp_path):
    shared = torch.rand(3)
    back = load_update(save_update(Update(kind="delta", sent={"a": shared, "b": shared}), tmp_path / "a"))
    assert torch.equal(back.sent["b"], shared)


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_two_state_files(tmp_path, suffix):
    model = small_model()
    update = trained(model, photographs())
    for name, state in (("before", update.received), ("after", update.sent)):
        path = tmp_path / f"{name}.{suffix}"
        save_file(dict(state), path) if suffix == "safetensors" else torch.save({"state_dict": dict(state)}, path)
    read = update_from_files(tmp_path / f"before.{suffix}", tmp_path / f"after.{suffix}")
    assert read.kind == "weights"
    assert all(torch.equal(read.sent[n], v) for n, v in update.sent.items())


def test_a_parameter_and_an_ordered_dict_are_plain_weights(tmp_path):
    model = small_model()
    torch.save(model.module.state_dict(), tmp_path / "a.pt")
    torch.save(dict(model.module.named_parameters()) | dict(model.module.named_buffers()), tmp_path / "b.pt")
    assert update_from_files(tmp_path / "a.pt", tmp_path / "b.pt").sent.keys() == model.state_dict().keys()


def test_an_observation_is_what_observe_would_give():
    """A captured round and a simulated one are the same observation."""
    model, batch = small_model(), photographs()
    client = FedAvg(steps=2, optimiser=Sgd(lr=0.05), mode="train", share="weights", share_buffers=True)
    for threat in (ls.threats.HONEST_SERVER, ls.threats.WITH_STATISTICS):
        labels = batch.labels if Knows.LABELS in threat.knows else None
        captured = to_observation(
            trained(model, batch, steps=2),
            small_model(seed=1),
            protocol=client,
            threat=threat,
            labels=labels,
            batch_size=4,
        )
        simulated = ls.observe(model, batch, protocol=client, threat=threat, generator=torch.Generator().manual_seed(0))
        assert captured.signal.keys() == simulated.signal.keys()
        for name, value in simulated.signal.items():
            torch.testing.assert_close(captured.signal[name], value, rtol=1e-4, atol=1e-7)
        assert captured.input == simulated.input
        assert (captured.labels is None) == (simulated.labels is None)
        # At the weights that were sent out, not at those of the model that was handed in.
        torch.testing.assert_close(captured.model.state_dict()["0.weight"], model.state_dict()["0.weight"])


def test_one_step_of_sgd_gives_the_gradient():
    model, batch = small_model(), photographs()
    update = replace(trained(model, batch, lr=0.5), metadata={"lr": 0.5, "steps": 1, "examples": 4})
    seen = to_observation(update, model, protocol=ls.FedSGD(mode="train"), threat=ls.threats.HONEST_SERVER)
    gradient = ls.FedSGD(mode="train").replay(model, batch.images, batch.labels)
    for name, value in gradient.items():
        torch.testing.assert_close(seen.signal[name], value, rtol=1e-3, atol=1e-6)
    assert seen.batch_size == 4
    untold = replace(update, metadata={"examples": 4})
    with pytest.raises(ls.BadInput, match="FedAvg"):
        to_observation(untold, model, protocol=ls.FedSGD(mode="train"), threat=ls.threats.HONEST_SERVER)


def test_deltas_move_buffers_too():
    model, batch = small_model(), photographs()
    weights = trained(model, batch)
    start = dict(weights.received)
    delta = replace(weights, kind="delta", sent={n: v - start[n] for n, v in weights.sent.items()})
    client = FedAvg(steps=1, optimiser=Sgd(lr=0.05), mode="train", share_buffers=True)
    seen = [
        to_observation(u, model, protocol=client, threat=ls.threats.WITH_STATISTICS, labels=batch.labels)
        for u in (weights, delta)
    ]
    for name, value in seen[0].signal.items():
        torch.testing.assert_close(seen[1].signal[name], value, rtol=1e-4, atol=1e-6)


def test_what_the_server_must_know_must_be_said():
    update, model = trained(small_model(), photographs()), small_model()
    client = FedAvg(steps=1, optimiser=Sgd(lr=0.05), mode="train")
    with pytest.raises(ls.BadInput, match="batch_size"):
        to_observation(update, model, protocol=client, threat=ls.threats.HONEST_SERVER)
    with pytest.raises(ls.BadInput, match="labels"):
        to_observation(update, model, protocol=client, threat=ls.threats.WITH_LABELS, batch_size=4)
    gradient = Update(kind="gradient", sent={"7.bias": torch.ones(10)})
    with pytest.raises(ls.BadInput, match="FedSGD"):
        to_observation(gradient, model, protocol=client, threat=ls.threats.HONEST_SERVER, batch_size=4)


def test_an_update_of_nothing_is_refused():
    with pytest.raises(ls.BadInput, match="empty"):
        Update(kind="weights", sent={})
    with pytest.raises(ls.BadInput, match="kind"):
        Update(kind="wieghts", sent={"a": torch.ones(1)})  # type: ignore[arg-type]
    with pytest.raises(ls.BadInput, match="finite"):
        Update(kind="delta", sent={"a": torch.ones(1)}, metadata={"lr": float("nan")})
