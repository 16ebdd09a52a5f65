"""Many clients in one pass are the same clients one after the other."""

import pytest
import torch
from cases import blobs, lenet, seeded

import leakscope as ls
from leakscope.attacks.learned.cache import Cache
from leakscope.attacks.learned.hashing import Hash
from leakscope.attacks.learned.losses import hungarian_mse
from leakscope.attacks.learned.pairs import Pairs, replay_many


def one_by_one(model, images, labels, protocol):
    signals = [protocol.replay(model, x, y) for x, y in zip(images, labels, strict=True)]
    return {name: torch.stack([signal[name] for signal in signals]) for name in signals[0]}


@pytest.mark.parametrize(
    ("name", "size", "protocol", "batch"),
    [
        ("leakscope:lenet-lti", 8, ls.FedSGD(), 1),
        ("leakscope:lenet-lti", 8, ls.FedSGD(reduction="sum"), 3),
        ("leakscope:resnet20", 8, ls.FedSGD(mode="train", share_buffers=True), 2),
        ("timm:vit_tiny_patch16_224", 32, ls.FedSGD(), 1),
        ("leakscope:resnet20", 8, ls.Split(cut="layer1.0"), 1),
    ],
)
def test_together_is_one_by_one(name, size, protocol, batch):
    model = ls.load_model(name, num_classes=4, image_size=size, seed=0)
    public = blobs(3 * batch, size)
    images, labels = public.images.unflatten(0, (3, batch)), public.labels.view(3, batch)
    found = replay_many(model, images, labels, protocol=protocol, generator=seeded())
    wanted = one_by_one(model, images, labels, protocol)
    assert set(found) == set(wanted)
    for key, value in wanted.items():
        largest = float(value.abs().max()) + 1e-6
        assert torch.allclose(found[key], value, atol=2e-5 * largest, rtol=1e-4), key


def test_local_training_is_replayed_in_turn():
    model, public = lenet(), blobs(4)
    protocol = ls.FedAvg(steps=2)
    found = replay_many(model, public.images[:2, None], public.labels[:2, None], protocol=protocol, generator=seeded())
    wanted = one_by_one(model, public.images[:2, None], public.labels[:2, None], protocol)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)


def test_defences_act_and_draw_for_each_client():
    model, public = lenet(), blobs(1)
    images, labels = public.images.expand(2, -1, -1, -1)[:, None], public.labels.expand(2)[:, None]
    noise = ls.defence("gaussian-noise", scale=0.5)
    plain = replay_many(model, images, labels, protocol=ls.FedSGD(), generator=seeded())
    noisy = replay_many(model, images, labels, protocol=ls.FedSGD(), defences=[noise], generator=seeded())
    off = noisy["fc.weight"] - plain["fc.weight"]
    assert torch.equal(plain["fc.weight"][0], plain["fc.weight"][1])
    assert not torch.equal(off[0], off[1])
    assert float(off.norm() / plain["fc.weight"].norm()) == pytest.approx(0.5, rel=0.15)


def test_every_image_serves_once_before_any_serves_twice():
    pairs = Pairs(
        model=lenet(), protocol=ls.FedSGD(), public=blobs(10), batch_size=3, count=5, generator=seeded()
    ).indices()
    assert pairs.shape == (5, 3)
    assert len(set(pairs[:3].flatten().tolist())) == 9
    labels = blobs(10).labels[pairs]
    assert bool((labels.diff(dim=1) >= 0).all())


def test_hash_is_linear_and_sums_into_bins():
    hash = Hash(size=50, bins=7)
    one, other = torch.randn(3, 50, generator=seeded(1)), torch.randn(3, 50, generator=seeded(2))
    assert torch.allclose(hash(2 * one - 3 * other), 2 * hash(one) - 3 * hash(other), atol=1e-5)
    assert torch.allclose(hash(one).sum(1), one.sum(1), atol=1e-5)  # every coordinate is in exactly one bin
    assert torch.equal(Hash(size=5, bins=9)(one[:, :5]), one[:, :5])
    signed = Hash(size=4000, bins=2000, signed=True)
    vector = torch.randn(1, 4000, generator=seeded(3))
    assert float(signed(vector).norm() / vector.norm()) == pytest.approx(1, abs=0.1)


def test_the_loss_does_not_ask_for_an_order():
    truth = torch.rand(2, 3, 1, 2, 2, generator=seeded())
    shuffled = torch.stack([truth[0, [2, 0, 1]], truth[1, [1, 0, 2]]]).requires_grad_()
    assert float(hungarian_mse(shuffled, truth).detach()) == 0
    made = (truth[:, [1, 2, 0]] + 0.1).requires_grad_()
    loss = hungarian_mse(made, truth)
    assert float(loss.detach()) == pytest.approx(0.01, rel=1e-4)
    loss.backward()
    assert torch.allclose(made.grad, torch.full_like(made, 0.2 / made.numel()), rtol=1e-4)


def test_the_cache_gives_back_what_it_was_given_and_keeps_its_limit(tmp_path):
    made = []

    def make(start):
        for number in range(start, 3):
            made.append(number)
            yield torch.full((2, 1), number), {"row": torch.full((2, 100), float(number))}

    cache = Cache(folder=tmp_path, limit=10_000)
    first = cache.gather("a", make)
    (tmp_path / "a" / "000001.safetensors").write_bytes(b"broken")  # what follows a broken chunk is made again
    again = cache.gather("a", make)
    assert made == [0, 1, 2, 1, 2]
    assert torch.equal(first[1]["row"], again[1]["row"])
    cache.gather("b", make)
    cache.gather("c", make)
    cache.gather("d", make)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors")) <= 10_000
    assert not (tmp_path / "a").exists()
    Cache(folder=tmp_path, limit=100).gather("large", make)
    assert not (tmp_path / "large").exists()
