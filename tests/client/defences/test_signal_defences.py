"""Defences that act on the signal: what they do to it, and what it weighs."""

import math

import pytest
import torch
from defended import flat, mlp, private, seeded, sent, setting, vit

import leakscope as ls
from leakscope.client import defence


def many(made, signal):
    """What becomes of one tensor in 200 rounds."""
    (name,) = signal
    return torch.stack([made(signal, setting=setting(), generator=seeded(seed))[name] for seed in range(200)])


@pytest.mark.parametrize("kind", ["gaussian-noise", "laplace-noise"])
@pytest.mark.parametrize("per", ["tensor", "signal"])
def test_noise_has_the_size_it_says(kind, per):
    plain, noisy = sent(), sent(defence(kind, scale=0.5, per=per))
    if per == "signal":
        assert (flat(noisy) - flat(plain)).norm() / flat(plain).norm() == pytest.approx(0.5, rel=0.1)
    else:
        big = "fc1.weight"  # 3072 entries: the size of the sample scatters by a few per cent
        assert (noisy[big] - plain[big]).norm() / plain[big].norm() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("kind", ["gaussian-noise", "laplace-noise"])
def test_noise_of_a_deviation_is_blind_to_the_gradient(kind):
    plain, made = sent(), defence(kind, scale=0.5, per="entry")
    noise = flat(sent(made)) - flat(plain)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert set(made.deviation(plain, 1).values()) == {0.5}


def test_gauss_and_laplace_are_what_they_are_called():
    from scipy import stats

    for kind, law in (("gaussian-noise", stats.norm), ("laplace-noise", stats.laplace(scale=1 / math.sqrt(2)))):
        noise = (sent(defence(kind, scale=1.0))["fc1.weight"] - sent()["fc1.weight"]).flatten()
        noise = noise / sent()["fc1.weight"].square().mean().sqrt()
        assert stats.kstest(noise.numpy(), law.cdf).pvalue > 0.01
        other = stats.laplace(scale=1 / math.sqrt(2)) if kind == "gaussian-noise" else stats.norm
        assert stats.kstest(noise.numpy(), other.cdf).pvalue < 0.01


def test_clipping():
    plain = sent()
    size = float(flat(plain).norm())
    clipped = sent(defence("clipping", norm=size / 4))
    assert torch.allclose(flat(clipped), flat(plain) / 4, rtol=1e-5)
    assert torch.equal(flat(sent(defence("clipping", norm=2 * size))), flat(plain))


def test_top_k_keeps_the_largest():
    plain, kept = sent(), sent(defence("top-k", share=0.25))
    for name, value in kept.items():
        count = max(1, round(0.25 * value.numel()))
        assert value.count_nonzero() == count
        chosen = value != 0
        assert torch.equal(value[chosen], plain[name][chosen])
        assert plain[name][chosen].abs().min() >= plain[name][~chosen].abs().max()
    total = sum(max(1, round(0.25 * v.numel())) for v in plain.values())
    assert defence("top-k").bytes_sent(kept) == 8 * total


def test_random_sparsification_is_unbiased():
    plain = sent()["fc1.weight"]
    made = defence("random-sparsification", share=0.25)
    rounds = many(made, {"fc1.weight": plain})
    assert (rounds != 0).float().mean() == pytest.approx(0.25, abs=0.01)
    assert torch.allclose(rounds.amax(0) + rounds.amin(0), 4 * plain, rtol=1e-4)  # sent entries are g / share
    assert (rounds.mean(0) - plain).norm() / plain.norm() < 0.2
    one = {"fc1.weight": rounds[0]}
    assert made.bytes_sent(one) == 8 * int(rounds[0].count_nonzero())


def test_sign_is_one_bit():
    plain = sent()
    for scaled in (True, False):
        made = defence("sign", scaled=scaled)
        signs = sent(made)
        for name, value in signs.items():
            size = plain[name].abs().mean() if scaled else torch.tensor(1.0)
            assert torch.equal(value, torch.where(plain[name] < 0, -size, size))
        assert made.bytes_sent(signs) == sum(math.ceil(v.numel() / 8) + 4 for v in signs.values())


def test_qsgd_levels_and_mean():
    plain = sent()["fc1.weight"]
    made = defence("qsgd", levels=2, bucket=64)
    got = sent(made)["fc1.weight"]
    rows, norms = got.view(-1, 64), plain.view(-1, 64).norm(dim=1, keepdim=True)
    steps = 2 * rows / norms
    assert torch.allclose(steps, steps.round(), atol=1e-4)
    assert steps.abs().max() <= 2.001
    mean = many(made, {"fc1.weight": plain}).mean(0)
    single = (got - plain).norm()
    assert (mean - plain).norm() < 0.15 * single  # 1/√200 = 0.07
    bits = math.ceil(3072 * 3 / 8) + 4 * 48  # five values take three bits; 48 buckets
    assert made.bytes_sent({"fc1.weight": got}) == bits


def test_withholding_by_role_name_and_pattern():
    everything = set(sent(start=setting(vit())))

    def left_out(what):
        return everything - set(sent(defence("withhold", what=what), start=setting(vit())))

    assert left_out("position-embedding") == {"pos_embed"}
    assert left_out("first-layer") == {"patch_embed.weight", "patch_embed.bias"}
    assert everything - left_out("all-but-head") == {"head.weight", "head.bias"}
    assert left_out(("pos_embed", "blocks.0.*")) == {"pos_embed"} | {n for n in everything if n.startswith("blocks.0.")}
    with pytest.raises(ls.UnknownName, match="Did you mean 'pos_embed'"):
        left_out("pos_embedd")
    with pytest.raises(ls.BadInput, match="no position embedding"):
        sent(defence("withhold"))
    with pytest.raises(ls.BadInput, match="shares nothing"):
        ls.observe(mlp(), private(), protocol=ls.FedSGD(), defences=[defence("withhold", what="*")], generator=seeded())


def test_soteria_prunes_the_features_it_should():
    from leakscope.client.defences.soteria import feature_sensitivity

    model, batch = mlp(), private()
    pixels = batch.images.clone().requires_grad_()
    hidden = torch.nn.Sequential(*list(model.module)[:-1])
    features = hidden.eval()(model.normalise(pixels))
    slow = torch.zeros(16)
    for i in range(16):  # one image and one feature at a time
        for b in range(2):
            slope = torch.autograd.grad(features[b, i], pixels, retain_graph=True)[0]
            slow[i] += slope.norm() / (features[b, i].detach().abs() + 0.1)
    assert torch.allclose(feature_sensitivity(model, batch.images), slow, rtol=1e-4)
    plain, pruned = sent(), sent(defence("soteria", share=0.25))
    gone = set(slow.topk(4, largest=False).indices.tolist())
    assert {i for i in range(16) if not pruned["head.weight"][:, i].any()} == gone
    assert all(torch.equal(pruned[n], plain[n]) for n in plain if n != "head.weight")


def test_buffers_pass_untouched():
    model = ls.load_model("leakscope:resnet20", num_classes=10, image_size=16, seed=0)
    start = setting(model, private(size=16), protocol=ls.FedSGD(mode="train", share_buffers=True))
    plain = sent(start=start)
    buffers = [name for name, _ in model.named_buffers()]
    assert buffers
    for name in ("gaussian-noise", "clipping", "top-k", "random-sparsification", "sign", "qsgd"):
        changed = sent(defence(name), start=start)
        assert all(torch.equal(plain[b], changed[b]) for b in buffers), name
