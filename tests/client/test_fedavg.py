"""FedAvg against a plain torch training loop, and its derivative against finite differences."""

from functools import partial

import pytest
import torch
from local_training import seeded, small_batch, small_model, train_plainly

import leakscope as ls
from leakscope.client import fedavg
from leakscope.client.fedavg import FedAvg
from leakscope.client.local_optimisers import Adam, Sgd, adamw

SGD = partial(torch.optim.SGD, lr=0.1)
OPTIMISERS = {
    "sgd": (Sgd(lr=0.1), SGD),
    "nesterov": (
        Sgd(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adamw": (adamw(lr=1e-3), partial(torch.optim.AdamW, lr=1e-3)),
}


def same(found, expected, tolerance=1e-6):
    assert set(found) == set(expected)
    for name, value in expected.items():
        gap = float((found[name].double() - value.double()).abs().max())
        assert gap <= tolerance * max(1.0, float(value.double().abs().max())), f"{name} is off by {gap}"


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("training", [False, True])
def test_it_trains_as_a_plain_loop_does(name, training):
    ours, theirs = OPTIMISERS[name]
    batch = small_batch(5)
    client = FedAvg(
        epochs=3, batch_size=2, optimiser=ours, mode="train" if training else "eval", share_buffers=training
    )
    plan = [([0, 1],), ([2, 3],), ([4],)] * 3
    found = client.replay(small_model(norm=True), batch.images, batch.labels, generator=seeded())
    moved, buffers = train_plainly(small_model(norm=True), batch, plan, theirs, training=training)
    same(found, moved | buffers if training else moved)
    assert not any(value.requires_grad for value in found.values())


def test_gradients_are_accumulated():
    batch = small_batch(5)
    client = FedAvg(steps=3, batch_size=2, accumulate=2, mode="train", share_buffers=True)
    plan = [([0, 1], [2, 3]), ([4],), ([0, 1], [2, 3])]
    assert [tuple(c.tolist() for c in step.batches) for step in client.plan(5)] == plan
    found = client.replay(small_model(norm=True), batch.images, batch.labels)
    moved, buffers = train_plainly(small_model(norm=True), batch, plan, SGD, training=True)
    same(found, moved | buffers)


def test_one_step_is_the_gradient():
    model, batch = small_model(dtype=torch.float64), small_batch()
    images = batch.images.double()
    gradient = ls.FedSGD(reduction="sum").replay(model, images, batch.labels)
    moved = FedAvg(steps=1, reduction="sum", optimiser=Sgd(lr=0.01)).replay(model, images, batch.labels)
    same(moved, {name: -0.01 * value for name, value in gradient.items()}, 1e-12)


@pytest.mark.parametrize("kept", [fedavg.KEPT, 0])
def test_a_replay_that_can_be_differentiated_says_the_same(kept, monkeypatch):
    monkeypatch.setattr(fedavg, "KEPT", kept)  # with nothing kept, every step is computed again backwards
    model, batch = small_model(norm=True), small_batch()
    client = FedAvg(steps=7, batch_size=2, mode="train", share_buffers=True, optimiser=Sgd(lr=0.1, momentum=0.9))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    plain = client.replay(model, batch.images, batch.labels)
    images = batch.images.clone().requires_grad_()
    graph = client.replay(model, images, batch.labels, create_graph=True)
    torch.autograd.grad(sum(v.square().sum() for n, v in graph.items() if n in dict(model.named_parameters())), images)
    same({n: v.detach() for n, v in graph.items()}, plain, 1e-7)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_computing_steps_again_changes_no_derivative(monkeypatch):
    model, batch = small_model(norm=True), small_batch()
    client = FedAvg(steps=6, batch_size=2, mode="train", stochastic=True, optimiser=Sgd(lr=0.1, momentum=0.9))
    found = []
    for kept in (fedavg.KEPT, 0):
        monkeypatch.setattr(fedavg, "KEPT", kept)
        images = batch.images.clone().requires_grad_()
        signal = client.replay(model, images, batch.labels, create_graph=True, generator=seeded())
        found += torch.autograd.grad(sum(v.square().sum() for v in signal.values()), images)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-7)


def test_long_training_keeps_the_graph_of_few_steps(monkeypatch):
    model, batch = small_model(), small_batch()

    def kept(steps):
        images, total = batch.images.clone().requires_grad_(), 0

        def count(tensor):
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            FedAvg(steps=steps).replay(model, images, batch.labels, create_graph=True)
        return total

    whole = kept(20) - kept(10)
    monkeypatch.setattr(fedavg, "KEPT", 0)
    assert kept(20) - kept(10) < 0.2 * whole


CASES = [
    ("sgd x1", {"steps": 1, "optimiser": Sgd(lr=0.5)}),
    ("sgd x5", {"steps": 5, "batch_size": 2, "optimiser": Sgd(lr=0.5)}),
    ("sgd x20", {"steps": 20, "batch_size": 2, "optimiser": Sgd(lr=0.5, momentum=0.5, weight_decay=1e-3)}),
    ("batchnorm x5", {"steps": 5, "batch_size": 2, "mode": "train", "accumulate": 2, "optimiser": Sgd(lr=0.5)}),
    ("adamw x5", {"steps": 5, "batch_size": 2, "optimiser": adamw(lr=1e-2)}),
    ("adam x5", {"steps": 5, "optimiser": Adam(lr=1e-2, weight_decay=0.1)}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[name for name, _ in CASES])
def test_the_unrolled_objective_has_the_derivative_that_differences_show(name, options):
    model = small_model(norm="batchnorm" in name, dtype=torch.float64)
    batch, client = small_batch(), FedAvg(**options)
    target = client.replay(model, batch.images.double(), batch.labels)
    start = torch.rand(batch.images.shape, generator=seeded(1), dtype=torch.float64)
    labels = torch.rand((4, 10), generator=seeded(2), dtype=torch.float64).softmax(1)

    def objective(images, create_graph=False):
        replayed = client.replay(model, images, labels, create_graph=create_graph)
        return sum((replayed[n] - target[n]).square().sum() for n in target)

    leaf = start.clone().requires_grad_()
    (found,) = torch.autograd.grad(objective(leaf, True), leaf)
    for seed in range(3):
        towards = torch.randn(start.shape, generator=seeded(10 + seed), dtype=torch.float64)
        towards = towards / towards.norm()
        step = 1e-5
        difference = (objective(start + step * towards) - objective(start - step * towards)) / (2 * step)
        assert float((found * towards).sum()) == pytest.approx(
            float(difference), rel=1e-4, abs=1e-6 * float(found.norm())
        )


def test_orders():
    fixed = FedAvg(epochs=2, batch_size=2)
    assert [s.batches[0].tolist() for s in fixed.plan(4, seeded())] == [[0, 1], [2, 3]] * 2
    assert [s.epoch for s in fixed.plan(4)] == [0, 0, 1, 1]

    def flat(client, generator=None):
        return [step.batches[0].tolist() for step in client.plan(8, generator)]

    known = FedAvg(epochs=2, batch_size=4, order="seeded", order_seed=3)
    assert flat(known) == flat(known, seeded(1))  # the server replays the very same order
    assert flat(known) != flat(FedAvg(epochs=2, batch_size=4, order="seeded", order_seed=4))
    first, second = flat(known)[:2], flat(known)[2:]
    assert sorted(first[0] + first[1]) == sorted(second[0] + second[1]) == list(range(8))
    assert first != second
    private = FedAvg(epochs=1, batch_size=4, order="private")
    assert flat(private, seeded(1)) != flat(private, seeded(2))
    assert flat(private) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_dropout_draws_anew_each_step_and_the_same_again():
    model, batch = small_model(), small_batch()
    client = FedAvg(steps=4, mode="train", stochastic=True)

    def moved(seed, graph=False):
        images = batch.images.clone().requires_grad_(graph)
        return client.replay(model, images, batch.labels, generator=seeded(seed), create_graph=graph)

    same({n: v.detach() for n, v in moved(0, True).items()}, moved(0), 1e-7)
    assert not torch.allclose(moved(0)["head.weight"], moved(1)["head.weight"])
    off = client.replay(model, batch.images, batch.labels)
    same(off, FedAvg(steps=4, mode="train").replay(model, batch.images, batch.labels, generator=seeded()), 0)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_what_is_sent_is_rounded(precision):
    model, batch = small_model(), small_batch()
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    exact = FedAvg(steps=3).replay(model, batch.images, batch.labels)
    start = dict(model.named_parameters())
    coarse = FedAvg(steps=3, precision=precision).replay(model, batch.images, batch.labels)
    weights = FedAvg(steps=3, precision=precision, share="weights").replay(model, batch.images, batch.labels)
    for name, value in exact.items():
        assert torch.equal(coarse[name], value.to(dtype).float())
        torch.testing.assert_close(
            weights[name] + start[name].detach(), (start[name] + value).detach().to(dtype).float(), rtol=0, atol=1e-7
        )
    gradient = ls.FedSGD(precision=precision).replay(model, batch.images, batch.labels)
    assert all(torch.equal(v, v.to(dtype).float()) for v in gradient.values())
    # Rounding passes derivatives on as if it were not there.
    leaf = batch.images.clone().requires_grad_()
    signal = FedAvg(steps=3, precision=precision).replay(model, leaf, batch.labels, create_graph=True)
    assert torch.equal(signal["head.weight"].detach(), coarse["head.weight"])
    (found,) = torch.autograd.grad(signal["head.weight"].sum(), leaf)
    assert float(found.abs().max()) > 0


@pytest.mark.parametrize("client", [ls.FedSGD, partial(FedAvg, steps=3)])
def test_only_the_named_parameters_are_trained(client):
    model, batch = small_model(), small_batch()
    head = client(trainable=("head.*",)).replay(model, batch.images, batch.labels)
    assert set(head) == {"head.weight", "head.bias"}
    weights = client(trainable=("*.weight",)).replay(model, batch.images, batch.labels)
    assert set(weights) == {"first.weight", "second.weight", "head.weight"}
    with pytest.raises(ls.BadInput, match=r"'haed.\*' matches no parameter of tanh-convnet. Nearest: .*head"):
        client(trainable=("haed.*",)).replay(model, batch.images, batch.labels)
    model.module.first.weight.requires_grad_(False)
    with pytest.raises(ls.BadInput, match=r"only frozen parameters.*first.weight"):
        client(trainable=("first.weight",)).replay(model, batch.images, batch.labels)
    with pytest.raises(ls.BadInput, match="takes a list"):
        client(trainable="head").replay(model, batch.images, batch.labels)


def test_a_frozen_layer_does_not_move_while_training():
    model, batch = small_model(), small_batch()
    twin = small_model()
    for name, parameter in twin.named_parameters():
        parameter.requires_grad_(name.startswith("head"))
    moved, _ = train_plainly(twin, batch, [([0, 1, 2, 3],)] * 3, SGD)
    found = FedAvg(steps=3, trainable=("head.*",)).replay(model, batch.images, batch.labels)
    same(found, {name: value for name, value in moved.items() if name.startswith("head")})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "neither was given"),
        ({"steps": 1, "epochs": 1}, "both were given"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 1, "batch_size": 0}, "batch_size is 0"),
        ({"steps": 1, "accumulate": 0}, "accumulate is 0"),
        ({"steps": 1, "order": "random"}, "'fixed', 'seeded', 'private'"),
        ({"steps": 1, "share": "gradient"}, "'delta', 'weights'"),
        ({"steps": 1, "precision": "fp8"}, "'full', 'fp16', 'bf16'"),
        ({"steps": 1, "mode": "training"}, "'train' or 'eval'"),
        ({"steps": 1, "reduction": "max"}, "'mean' or 'sum'"),
    ],
)
def test_what_no_client_does_is_refused(options, words):
    with pytest.raises(ls.BadInput, match=words):
        FedAvg(**options)
