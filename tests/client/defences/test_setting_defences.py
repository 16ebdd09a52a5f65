"""Defences that act before training: on the batch, the model, the protocol."""

from dataclasses import replace

import pytest
import torch
from defended import company, flat, mlp, private, seeded, sent, setting, vit

import leakscope as ls
from leakscope.client import FedAvg, defence
from leakscope.client.aggregation import SecureAggregation
from leakscope.client.defences.fixed_position_embedding import sine_cosine_table
from leakscope.client.round import run_round
from leakscope.types import Knows


def prepared(name, start=None, seed=0, **options):
    return defence(name, **options).prepare(start or setting(), generator=seeded(seed))


def test_mixup_blends_images_and_labels():
    got = prepared("mixup", replace(setting(), others=None))
    one, two = private().images
    share = got.labels[0, private().labels[0]]
    assert 0.5 <= share <= 1
    assert torch.allclose(got.images[0], share * one + (1 - share) * two, atol=1e-6)
    assert torch.allclose(got.labels.sum(1), torch.ones(2))
    alone = replace(setting(batch=private(1)), others=None)
    with pytest.raises(ls.BadInput, match="others=Batch"):
        prepared("mixup", alone)
    assert not torch.equal(prepared("mixup", setting(batch=private(1))).images, private(1).images)


def test_instahide_hides_signs():
    got = prepared("instahide", mix=3)
    model = mlp()
    sizes = model.normalise(got.images).abs()
    again = prepared("instahide", seed=0, mix=3)
    assert torch.equal(got.images, again.images)
    assert got.labels.max() <= 0.65 + 1e-6
    flipped = (model.normalise(got.images) < 0).float().mean()
    assert 0.4 < flipped < 0.6
    assert float(sizes.max()) <= float(model.normalise(torch.ones(1, 3, 8, 8)).abs().max()) + 1e-5


def test_a_larger_batch_starts_with_the_private_one():
    got = prepared("larger-batch", size=5)
    assert torch.equal(got.images[:2], private().images)
    rows = {tuple(image.flatten().tolist()) for image in company().images}
    assert all(tuple(image.flatten().tolist()) in rows for image in got.images[2:])
    assert len(got.images) == len(got.labels) == 5
    assert prepared("larger-batch", size=2).images is not None
    with pytest.raises(ls.BadInput, match=r"needs 18 other images.*6 were given"):
        prepared("larger-batch", size=20)
    seen = ls.observe(
        mlp(),
        private(),
        protocol=ls.FedSGD(),
        defences=[defence("larger-batch", size=5)],
        others=company(),
        generator=seeded(),
    )
    assert seen.batch_size == 5


def test_secure_aggregation_is_the_mean_of_clients():
    got, signal = run_round(setting(), [defence("secure-aggregation", clients=3)], generator=seeded())
    assert isinstance(got.protocol, SecureAggregation)
    assert got.unaware == got.protocol
    means = [ls.FedSGD().replay(mlp(), got.images[i : i + 2], got.labels[i : i + 2]) for i in (0, 2, 4)]
    for name, value in signal.items():
        assert torch.allclose(value, torch.stack([m[name] for m in means]).mean(0), atol=1e-6)


def test_more_local_steps():
    got = prepared("more-local-steps", steps=3, lr=0.05)
    assert isinstance(got.protocol, FedAvg)
    assert got.unaware == got.aware == got.protocol
    once = sent(defence("more-local-steps", steps=1, lr=0.05))
    assert torch.allclose(flat(once), -0.05 * flat(sent()), rtol=1e-3, atol=1e-7)
    longer = prepared("more-local-steps", setting(protocol=FedAvg(epochs=1, batch_size=1)), steps=4)
    assert (longer.protocol.steps, longer.protocol.epochs, longer.protocol.batch_size) == (4, None, 1)


def test_fixed_positions():
    model = vit()
    before = model.fingerprint()
    got = prepared("fixed-position-embedding", setting(model)).model
    assert model.fingerprint() == before
    assert model.anatomy.position_embedding.learnable
    assert not got.anatomy.position_embedding.learnable
    assert "pos_embed" not in sent(defence("fixed-position-embedding"), start=setting(model))
    table = got.module.pos_embed[0]
    assert not table[0].any()
    assert torch.equal(table[1:], sine_cosine_table((4, 4), 384).float())
    others = set(dict(model.named_parameters())) - {"pos_embed"}
    assert all(torch.equal(got.state_dict()[n], model.state_dict()[n]) for n in others)
    again = prepared("fixed-position-embedding", setting(got)).model
    assert again is got
    with pytest.raises(ls.BadInput, match="no position table"):
        prepared("fixed-position-embedding")


def test_the_table_is_timms():
    from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed

    theirs = build_sincos2d_pos_embed([4, 4], dim=32, temperature=10_000.0, interleave_sin_cos=False)
    ours = sine_cosine_table((4, 4), 32)
    # timm orders its four blocks of columns otherwise; positions are told apart alike.
    assert torch.allclose(theirs.double() @ theirs.double().T, ours @ ours.T, atol=1e-5)
    with pytest.raises(ls.BadInput, match="divisible by 4"):
        sine_cosine_table((2, 2), 6)


def test_who_believes_what():
    """The server that knows the defence replays it; the other does not."""
    chain = [defence("dp-sgd", clip=0.1, noise_multiplier=0.0)]
    knowing = ls.threats.WITH_LABELS.plus(Knows.DEFENCE)
    run = {"protocol": ls.FedSGD(), "defences": chain, "generator": seeded()}
    aware = ls.observe(mlp(), private(), threat=knowing, **run)
    unaware = ls.observe(mlp(), private(), threat=ls.threats.WITH_LABELS, **run)
    assert unaware.protocol == ls.FedSGD()
    assert unaware.defences == ()
    replayed = aware.protocol.replay(mlp(), private().images, private().labels)
    assert all(torch.allclose(replayed[n], aware.signal[n]) for n in replayed)
    assert not torch.allclose(
        flat(unaware.protocol.replay(mlp(), private().images, private().labels)), flat(unaware.signal)
    )
