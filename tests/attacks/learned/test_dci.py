"""Feature inversion, part by part."""

import pytest
import torch
from cases import blank_error, blobs, lenet, seeded, seen

import leakscope as ls
from leakscope.attacks.decoders import Pink
from leakscope.attacks.learned.front import front_of
from leakscope.attacks.learned.inverse_blocks import InverseBlock
from leakscope.attacks.learned.leaves import dead_leaves
from leakscope.attacks.learned.pairs import Pairs
from leakscope.attacks.learned.synthesis import Synthesis

CUT = ls.Split(cut="act2")


def error_of(inverter, model, test):
    batches = [ls.Batch(images=test.images[i : i + 1], labels=test.labels[i : i + 1]) for i in range(len(test))]
    needs = ls.threats.WITH_PUBLIC_DATA if inverter.needs else ls.threats.HONEST_SERVER
    found = [inverter(seen(model, one, CUT, threat=needs), generator=seeded()).images for one in batches]
    return float((torch.cat(found) - test.images).square().mean())


def test_dci_beats_the_mean_image_and_trains_part_by_part():
    model, public, test = lenet(), blobs(100), blobs(10, seed=50)
    method = ls.attack("dci", steps=120, width=8, batch=16, lr=5e-3)  # and 120 before them
    inverter = method.fit(public, CUT, model=model, generator=seeded())
    assert error_of(inverter, model, test) < 0.3 * blank_error(public, test)
    assert list(dict.fromkeys(row[0] for row in inverter.trace)) == ["parts 1–1", "parts 2–2", "parts 1–2"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_save_and_load(tmp_path):
    model, path = lenet(), tmp_path / "dci.safetensors"
    inverter = ls.attack("decoder", steps=2, width=4).fit(blobs(20), CUT, model=model, generator=seeded())
    inverter.save(path)
    observation = seen(model, blobs(1, seed=3), CUT)
    one, other = (a(observation, generator=seeded()) for a in (inverter, ls.load_inverter(path, model)))
    assert torch.equal(one.images, other.images)


@pytest.mark.parametrize(
    ("name", "cut", "parts", "names"),
    [
        ("leakscope:resnet18", "layer1.1", 9, ["input of layer1.0", "input of layer1.1", "layer1.1"]),
        ("leakscope:lenet-lti", "conv2", 9, ["input of conv2", "conv2"]),
        ("leakscope:lenet-lti", "act1", 9, ["act1"]),
        (
            "torchvision:resnet50",
            "layer3.1",
            6,
            ["input of layer1.0", "input of layer2.0", "input of layer3.0", "layer3.1"],
        ),
        ("timm:resnet50", "layer4.2", 9, [*(f"input of layer{stage}.0" for stage in (1, 2, 3, 4)), "layer4.2"]),
        ("leakscope:resnet20", "layer1", 9, [*(f"input of layer1.{block}" for block in range(3)), "layer1"]),
        (
            "timm:efficientnet_lite0",
            "blocks.1",
            9,
            [f"input of blocks.{i}" for i in ("0.0", "1.0", "1.1")] + ["blocks.1"],
        ),
        ("timm:repvgg_a0", "stages.3.0", 9, [*(f"input of stages.{stage}.0" for stage in range(4)), "stages.3.0"]),
    ],
)
def test_the_front_is_cut_into_parts(name, cut, parts, names):
    model = ls.load_model(name, num_classes=4, image_size=32, seed=0)
    front = front_of(model, ls.Split(cut=cut), parts=parts)
    assert list(front.names) == names
    pixels = blobs(2, size=32).images
    features = front(pixels)
    assert [tuple(h.shape[1:]) for h in features] == list(front.shapes)
    wanted = ls.Split(cut=cut).replay(model, pixels, torch.zeros(2))[cut]
    assert torch.allclose(features[-1], wanted, atol=1e-5)


def test_no_part_of_the_front_is_run_in_vain():
    model = ls.load_model("leakscope:resnet20", num_classes=4, image_size=8, seed=0)
    front, pixels, ran = front_of(model, ls.Split(cut="layer1"), parts=9), blobs(2).images, []
    hook = model.module.layer1[1].conv1.register_forward_hook(lambda *_: ran.append(1))
    first = front(pixels, 2)
    assert not ran
    everything = front(pixels)
    hook.remove()
    assert ran
    assert len(first) == 2
    assert all(torch.equal(one, other) for one, other in zip(first, everything, strict=False))


def test_an_inverse_begins_as_the_identity_and_makes_images_larger():
    features = torch.randn(2, 6, 4, 4, generator=seeded())
    assert torch.allclose(InverseBlock((6, 4, 4), (6, 4, 4), 8, seeded())(features), features, atol=0.5)
    for size, inner in (((3, 8, 8), 4), ((3, 7, 5), None), ((3, 16, 16), 4)):
        block = InverseBlock((6, 4, 4), size, 8, seeded())
        sizes = []
        block.first.register_forward_hook(lambda _, __, out, sizes=sizes: sizes.append(out.shape[-1]))
        assert block(features).shape == (2, *size)
        assert inner is None or sizes == [inner]  # the wide state stays small


def test_data_free_needs_no_public_data():
    model = ls.load_model("leakscope:resnet20", num_classes=4, image_size=8, seed=0)
    with model.mode(training=True), torch.no_grad():
        model(blobs(16).images)  # statistics that say something
    cut = ls.Split(cut="layer1.0")
    method = ls.attack("dci", data="synthetic", images=12, leaves=12, synthesis_steps=2, steps=2, width=4)
    inverter = method.fit(None, cut, model=model, generator=seeded())
    honest = seen(model, blobs(1, seed=3), cut, threat=ls.threats.HONEST_SERVER)
    assert inverter.needs == ()
    assert inverter(honest, generator=seeded()).images.shape == (1, 3, 8, 8)
    with pytest.raises(ls.NotApplicable, match="BatchNorm"):
        method.fit(None, CUT, model=lenet(), generator=seeded())
    drawn = ls.attack("dci", data="leaves", leaves=12, steps=2, width=4)
    assert drawn.fit(None, CUT, model=lenet(), generator=seeded()).needs == ()


def roughness(images):
    return float((images[..., 1:] - images[..., :-1]).abs().mean() / images.std())


def test_made_up_images_are_not_white_noise():
    model = ls.load_model("leakscope:resnet20", num_classes=4, image_size=16, seed=0)
    with model.mode(training=True), torch.no_grad():
        for _ in range(20):
            model(blobs(16, size=16).images)
    made = Synthesis(count=8, batch=8, steps=5)(model, generator=seeded())
    assert roughness(made.images) < 0.7 * roughness(torch.rand(8, 3, 16, 16, generator=seeded()))
    few = Synthesis(count=80, batch=8, steps=5)(model, generator=seeded(), seconds=0.0)
    assert len(few) == 8  # time was up after the first batch


def test_images_are_made_up_from_the_model_and_drawn():
    model = ls.load_model("leakscope:resnet20", num_classes=4, image_size=8, seed=0)
    with model.mode(training=True), torch.no_grad():
        model(blobs(16).images)
    both = Synthesis(count=3, leaves=5, batch=4, steps=1)(model, generator=seeded())
    alone = Synthesis(count=0, leaves=5, batch=4)(model, generator=seeded())
    assert len(both) == 8
    assert torch.equal(both.images[:5], alone.images)
    assert torch.equal(both.labels[:5], alone.labels)
    with pytest.raises(ls.BadInput, match="count and leaves together"):
        Synthesis(count=0)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 20), (3, 96, 64)])
def test_dead_leaves_have_edges_like_photographs(shape):
    leaves = dead_leaves(16, shape, generator=seeded())
    assert leaves.shape == (16, *shape)
    assert torch.equal(leaves, dead_leaves(16, shape, generator=seeded()))
    assert leaves.min() >= 0
    assert leaves.max() <= 1
    steps = (leaves[..., 1:] - leaves[..., :-1]).flatten()
    # Mostly smooth, with edges here and there: far heavier tails than a Gaussian's, whose kurtosis is 3.
    assert float((steps - steps.mean()).pow(4).mean() / steps.var().square()) > 8


def test_an_inverter_fitted_on_dead_leaves_reads_photographs():
    model = ls.load_model("leakscope:convnet64", num_classes=4, image_size=16, seed=0)
    cut, photographs = ls.Split(cut="relu0"), ls.bundled_batch(["cat", "coffee", "astronaut"], size=16)
    method = ls.attack("dci", data="leaves", leaves=64, steps=60, width=4)
    inverter = method.fit(None, cut, model=model, generator=seeded())
    for index in range(len(photographs)):
        one = ls.Batch(images=photographs.images[index : index + 1], labels=photographs.labels[index : index + 1])
        found = inverter(seen(model, one, cut, threat=ls.threats.HONEST_SERVER), generator=seeded())
        even = one.images.mean((2, 3), keepdim=True)
        assert (found.images - one.images).square().mean() < 0.25 * (even - one.images).square().mean()


@pytest.mark.parametrize("size", [(8, 8), (7, 9)])
def test_pink_pictures_have_a_photographs_spectrum(size):
    space, white = Pink(shape=(200, 3, *size)), torch.randn(200, 3, *size, generator=seeded())
    pictures = space(white)
    assert float(pictures.std()) == pytest.approx(1, abs=0.05)
    assert torch.allclose(space.encode(pictures), white, atol=1e-4)
    power = torch.fft.fft2(pictures).abs().square().mean((0, 1))
    assert float(power[0, 1] / power[0, 3]) == pytest.approx(9, rel=0.3)  # 1/f²
    colours = torch.corrcoef(pictures.transpose(0, 1).flatten(1))
    assert float(colours[0, 1]) == pytest.approx(0.9, abs=0.05)


def test_gradients_are_not_features():
    with pytest.raises(ls.NotApplicable, match="features"):
        ls.attack("dci", steps=1).fit(blobs(20), ls.FedSGD(), model=lenet(), generator=seeded())
    with pytest.raises(ls.BadInput, match="no public images"):
        ls.attack("dci", steps=1).fit(None, CUT, model=lenet(), generator=seeded())


def test_repvgg_is_inverted_block_by_block():
    model, cut = ls.load_model("timm:repvgg_a0", num_classes=4, image_size=32, seed=0), ls.Split(cut="stages.0.1")
    inverter = ls.attack("dci", steps=2, width=4, batch=4).fit(blobs(8, size=32), cut, model=model, generator=seeded())
    assert [row[0] for row in inverter.trace][-1] == "parts 1–3"  # the stem and two blocks
    assert inverter(seen(model, blobs(1, size=32, seed=3), cut), generator=seeded()).images.shape == (1, 3, 32, 32)


@pytest.mark.parametrize("name", ["dci", "decoder"])
def test_a_fit_that_knows_the_noise_does_better_on_noised_features(name):
    model, public, test = lenet(), blobs(100), blobs(40, seed=50)
    noise = ls.defence("gaussian-noise", scale=1.0)
    method = ls.attack(name, steps=25, width=8, batch=16, lr=5e-3)
    errors = {}
    for known in ((), (noise,)):
        inverter = method.fit(public, CUT, model=model, defences=known, generator=seeded())
        pairs = Pairs(
            model=model, protocol=CUT, public=test, batch_size=1, count=40, defences=(noise,), generator=seeded()
        )
        ((indices, sent),) = list(pairs.chunks())
        made = inverter.images(sent).clamp(0, 1)
        errors[bool(known)] = float((made - test.images[indices]).square().mean())
    assert errors[True] < 0.8 * errors[False]


def test_noise_is_drawn_anew_but_the_same_fit_ends_at_the_same_weights():
    model, public, noise = lenet(), blobs(20), ls.defence("gaussian-noise", scale=1.0)
    method = ls.attack("decoder", steps=2, width=4, batch=8)
    known = [
        method.fit(public, CUT, model=model, defences=d, generator=seeded()).digest for d in ((noise,), (noise,), ())
    ]
    assert known[0] == known[1] != known[2]
    with pytest.raises(ls.NotApplicable, match="not one for each"):
        ls.attack("dci").architecture.build(model, {"act2": (3, 12, 4, 4)}, 1, seeded())
