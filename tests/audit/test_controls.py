"""The prior-only control keeps everything but what the images left behind; the controlled start is what it says."""

from dataclasses import replace

import pytest
import torch

import leakscope as ls
from leakscope.attacks.decoders import pink
from leakscope.audit.controls import ControlledStart, without_signal


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def observation(model="leakscope:resnet20", *, mode="train", share=True):
    made = ls.load_model(model, image_size=8, num_classes=10)
    batch = ls.bundled_batch(["cat", "coffee"], size=8)
    protocol = ls.FedSGD(mode=mode, share_buffers=share)
    return ls.observe(made, batch, protocol=protocol, threat=ls.threats.WITH_STATISTICS, generator=seeded())


def correlation(one, other):
    one, other = one.flatten().double(), other.flatten().double()
    return float(one @ other / (one.norm() * other.norm()).clamp_min(1e-30))


def test_every_gradient_becomes_noise_of_its_norm():
    seen = observation()
    control = without_signal(seen, seeded(1))
    assert set(control.signal) == set(seen.signal)
    for name, value in seen.gradients.items():
        new = control.signal[name]
        assert (new.shape, new.dtype) == (value.shape, value.dtype)
        assert float(new.norm()) == pytest.approx(float(value.norm()), rel=1e-5)
        if value.numel() > 1000:
            assert abs(correlation(new, value)) < 0.15


def test_all_else_stays():
    seen = observation()
    control = without_signal(seen, seeded(1))
    for name in ("model", "protocol", "input", "threat", "labels", "public", "defences"):
        assert getattr(control, name) is getattr(seen, name)
    assert torch.equal(control.labels, seen.labels)


def test_running_statistics_move_as_far_and_stay_statistics():
    seen = observation()
    control = without_signal(seen, seeded(1))
    own = dict(seen.model.named_buffers())
    assert seen.buffers
    for name, value in seen.buffers.items():
        new = control.signal[name]
        if not value.is_floating_point():
            assert torch.equal(new, value)
        elif name.endswith("var"):
            assert bool((new > 0).all())
        else:
            assert float((new - own[name]).norm()) == pytest.approx(float((value - own[name]).norm()), rel=1e-4)
            assert not torch.allclose(new, value)


def test_zeros_stay_as_many_at_other_places():
    seen = observation("leakscope:mlp?hidden=64", mode="eval", share=False)
    sparse = {name: torch.where(v.abs() >= v.abs().quantile(0.9), v, 0.0) for name, v in seen.signal.items()}
    sparse["fc1.bias"] = torch.zeros_like(sparse["fc1.bias"])
    control = without_signal(replace(seen, signal=sparse), seeded(1))
    assert not control.signal["fc1.bias"].any()
    for name, value in sparse.items():
        assert torch.count_nonzero(control.signal[name]) == torch.count_nonzero(value)
    weight, new = sparse["fc1.weight"], control.signal["fc1.weight"]
    assert float(((weight != 0) & (new != 0)).double().mean()) < 0.05


def test_rounds_keep_their_common_part_and_their_spread():
    seen = observation("leakscope:mlp?hidden=64", mode="eval", share=False)
    noise = torch.randn(4, *seen.signal["fc1.weight"].shape, generator=seeded(5)) * 0.01
    rounds = [{**seen.signal, "fc1.weight": seen.signal["fc1.weight"] + one} for one in noise]
    control = without_signal(replace(seen, signal=rounds[0], rounds=tuple(rounds[1:])), seeded(1))
    before = torch.stack([one["fc1.weight"] for one in rounds])
    after = torch.stack([one["fc1.weight"] for one in (control.signal, *control.rounds)])
    assert float(after.mean(0).norm()) == pytest.approx(float(before.mean(0).norm()), rel=0.2)
    assert float((after - after.mean(0)).norm()) == pytest.approx(float((before - before.mean(0)).norm()), rel=0.2)
    assert abs(correlation(after.mean(0), before.mean(0))) < 0.1


def test_it_is_reproducible_and_depends_on_nothing_but_norms():
    seen = observation()
    one, same, other = (without_signal(seen, seeded(seed)) for seed in (1, 1, 2))
    name = next(iter(seen.signal))
    assert torch.equal(one.signal[name], same.signal[name])
    assert not torch.equal(one.signal[name], other.signal[name])
    mirrored = replace(seen, signal={n: v.flip(0) for n, v in seen.signal.items()})
    assert torch.allclose(without_signal(mirrored, seeded(1)).signal[name], one.signal[name], rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_controlled_start_replaces_its_share_of_pixels(share):
    images = ls.bundled_batch(["cat", "coffee"], size=32).images
    start = ControlledStart(images=images, noise=share).drawn(seeded())
    changed = start != images
    assert float(changed.double().mean()) == pytest.approx(share, abs=0.03)
    assert torch.equal(changed.any(1), changed.all(1))  # a pixel in all its channels


@pytest.mark.parametrize("decode", [None, pink])
def test_an_attack_begins_at_a_controlled_start_whatever_it_searches(decode):
    seen = observation("leakscope:mlp?hidden=64&activation=tanh", mode="eval", share=False)
    batch = ls.bundled_batch(["cat", "coffee"], size=8)
    start = ControlledStart(images=seen.model.normalise(batch.images), noise=0.0)
    found = ls.attack("inverting-gradients", steps=1, tv=0.0, lr=1e-6, init=start, decode=decode)(
        seen, generator=seeded()
    )
    assert float(ls.score(found, batch, ["psnr"])["psnr"].min()) > 80


def test_a_controlled_start_refuses_what_does_not_fit():
    images = torch.zeros(1, 3, 8, 8)
    with pytest.raises(ls.BadInput, match="from 0 to 1"):
        ControlledStart(images=images, noise=1.5)
    with pytest.raises(ls.BadInput, match="asks for"):
        ControlledStart(images=images, noise=0.5).start(
            observation("leakscope:mlp", mode="eval", share=False), None, seeded()
        )
    with pytest.raises(ls.BadInput, match="B, C, H, W"):
        ControlledStart(images=images[0], noise=0.5)
