"""Secure aggregation: the server sees a sum over clients."""

import pytest
import torch
from local_training import seeded, small_batch, small_model

import leakscope as ls
from leakscope.client.gradient_view import as_gradient


def parts():
    whole = small_batch(5)
    return [
        ls.Batch(images=whole.images[rows], labels=whole.labels[rows], names=whole.names[rows])
        for rows in (slice(0, 2), slice(2, 5))
    ]


@pytest.mark.parametrize(("weighting", "weights"), [("mean", (0.5, 0.5)), ("samples", (0.4, 0.6)), ("sum", (1.0, 1.0))])
@pytest.mark.parametrize("client", [ls.FedSGD(), ls.FedAvg(steps=3, mode="train", share_buffers=True)])
def test_it_is_the_sum_of_what_each_client_sends(client, weighting, weights):
    model, clients = small_model(norm=True), parts()
    protocol = ls.SecureAggregation(client=client, sizes=(2, 3), weighting=weighting)
    seen = ls.observe(
        model, ls.joined(clients), protocol=protocol, threat=ls.threats.WITH_STATISTICS, generator=seeded()
    )
    single = [client.replay(model, own.images, own.labels) for own in clients]
    for name, value in seen.signal.items():
        if value.is_floating_point():
            expected = sum(w * s[name] for w, s in zip(weights, single, strict=True))
            torch.testing.assert_close(value, expected)
        else:
            assert torch.equal(value, single[0][name])
    assert seen.input.batch_size == 5
    assert len(seen.labels) == 5


def test_names_go_along():
    clients = parts()
    assert ls.joined(clients).names == clients[0].names + clients[1].names
    unnamed = ls.Batch(images=clients[0].images, labels=clients[0].labels)
    assert ls.joined([unnamed, clients[1]]).names == ()


def test_a_sum_over_clients_as_one_mean_gradient():
    model, clients = small_model(), [small_batch(2), small_batch(2)]
    whole = ls.joined(clients)
    expected = ls.FedSGD().replay(model, whole.images, whole.labels)
    for weighting in ("sum", "mean"):
        for client in (ls.FedSGD(), ls.FedSGD(reduction="sum"), ls.FedAvg(steps=1, reduction="sum")):
            protocol = ls.SecureAggregation(client=client, sizes=(2, 2), weighting=weighting)
            seen = as_gradient(ls.observe(model, whole, protocol=protocol, generator=seeded()))
            for name, value in expected.items():
                torch.testing.assert_close(seen.signal[name], value, rtol=1e-4, atol=1e-5)
            assert seen.protocol == ls.FedSGD()


def test_bad_sizes_are_refused():
    protocol = ls.SecureAggregation(client=ls.FedSGD(), sizes=(2, 2))
    with pytest.raises(ls.BadInput, match=r"2 \+ 2 images; 5 were given"):
        ls.observe(small_model(), small_batch(5), protocol=protocol, generator=seeded())
    with pytest.raises(ls.BadInput, match="1 or more, of each client"):
        ls.SecureAggregation(client=ls.FedSGD(), sizes=())
    with pytest.raises(ls.BadInput, match="'mean', 'samples' or 'sum'"):
        ls.SecureAggregation(client=ls.FedSGD(), sizes=(1,), weighting="max")
    with pytest.raises(ls.BadInput, match="no batches"):
        ls.joined([])
