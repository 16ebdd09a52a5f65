"""Fitted attacks: better than a blank, the same after a kill and after a save, honest about what they are for."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import blank_error, blobs, killed, lenet, seeded, seen

import leakscope as ls
from leakscope.attacks.learned.git_coarse import CoarseGIT
from leakscope.attacks.learned.scaling import ridge
from leakscope.attacks.learned.structure import links_of

SMALL = {"git-coarse": {"steps": 5, "hidden": 16, "bins": 256}, "lti": {"steps": 300, "hidden": 64, "lr": 1e-3}}


def error_of(name, count=1, model=None, **options):
    model = model or lenet()
    public, test = blobs(200), blobs(20 * count, seed=50)
    inverter = ls.attack(name, **{**SMALL[name], **options}).fit(
        public, ls.FedSGD(), model=model, batch_size=count, generator=seeded()
    )
    errors = []
    for start in range(0, len(test), count):
        part = slice(start, start + count)
        batch = ls.Batch(images=test.images[part], labels=test.labels[part])
        found = inverter(seen(model, batch), generator=seeded())
        errors.append(float(ls.score(found, batch, ["mse"])["mse"].mean()))
    return sum(errors) / len(errors), blank_error(public, test)


def test_fitting_beats_the_mean_image_and_git_beats_lti():
    (git, blank), (lti, _) = error_of("git-coarse"), error_of("lti")
    assert lti < 0.3 * blank
    assert git < 0.3 * lti


def test_two_images_are_told_apart():
    error, blank = error_of("lti", 2, pairs=800, steps=200, batch=64)
    assert error < 0.8 * blank


def test_linear_layers_are_exact():
    model = ls.load_model("leakscope:mlp?hidden=16", num_classes=4, image_size=8, seed=0)
    assert error_of("git-coarse", model=model)[0] < 1e-8


def fitted(model=None, **options):
    made = ls.attack("git-coarse", **{**SMALL["git-coarse"], **options})
    return made.fit(blobs(40), ls.FedSGD(), model=model or lenet(), generator=seeded())


def test_save_and_load(tmp_path):
    model, path = lenet(), tmp_path / "inverter.safetensors"
    inverter = fitted(model)
    inverter.save(path)
    again = ls.load_inverter(path, model)
    observation = seen(model, blobs(1, seed=7))
    one, other = (which(observation, generator=seeded()) for which in (inverter, again))
    assert torch.equal(one.images, other.images)
    assert again.digest == inverter.digest
    assert (again.held_out, again.signature, again.needs) == (inverter.held_out, inverter.signature, inverter.needs)
    with pytest.raises(ls.BadInput, match="inverts leakscope:lenet-lti"):
        ls.load_inverter(path, ls.load_model("leakscope:mlp", num_classes=4, image_size=8))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ls.BadInput, match="no inverter"):
        ls.load_inverter(path, model)


def test_it_answers_only_what_it_was_fitted_for():
    model, image = lenet(), blobs(1, seed=7)
    inverter = fitted(model)
    with pytest.raises(ls.MissingKnowledge, match="public data"):
        inverter(seen(model, image, threat=ls.threats.HONEST_SERVER), generator=seeded())
    with pytest.raises(ls.NotApplicable, match="batch size"):
        inverter(seen(model, blobs(2)), generator=seeded())
    with pytest.raises(ls.NotApplicable, match="protocol"):
        inverter(seen(model, image, protocol=ls.FedSGD(reduction="sum")), generator=seeded())
    with pytest.raises(ls.NotApplicable, match="signal"):
        inverter(seen(model, image, defences=[ls.defence("withhold", what="conv1.bias")]), generator=seeded())
    with pytest.raises(ls.NotApplicable, match="model"):
        inverter(seen(lenet(size=16), blobs(1, size=16)), generator=seeded())
    other = seen(lenet(seed=3), image)
    with pytest.raises(ls.NotApplicable, match="other weights"):
        inverter(other, generator=seeded())
    assert inverter.trusting()(other, generator=seeded()).images.shape == image.images.shape


def test_on_an_observation_it_fits_itself():
    model, public = lenet(), blobs(40)
    observation = seen(model, blobs(1, seed=7), public=public)
    steps = []
    attack = ls.attack("git-coarse", **SMALL["git-coarse"])
    one = attack(observation, generator=seeded(), callback=lambda progress: steps.append(progress.step))
    counted = len(steps)
    other = attack(observation, generator=seeded(), callback=lambda progress: steps.append(progress.step))
    assert torch.equal(one.images, other.images)
    assert counted == 5
    assert len(steps) == counted  # the second time it was fitted already
    with pytest.raises(ls.MissingKnowledge, match="public data"):
        attack(seen(model, blobs(1), threat=ls.threats.WITH_LABELS), generator=seeded())


def test_what_is_withheld_is_not_trained_on():
    model, batch = lenet(), blobs(1, seed=7)
    kept = seen(model, batch, public=blobs(40), defences=[ls.defence("withhold", what="fc.*")])
    found = ls.attack("git-coarse", **SMALL["git-coarse"])(kept, generator=seeded())
    assert "fc.weight" not in kept.signal
    assert found.images.shape == batch.images.shape


def test_withheld_heads_and_hidden_layers():
    model = lenet()
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters() if not name.startswith("fc")}
    network = CoarseGIT(hidden=4, bins=64, width=32).build(model, shapes, 1, seeded())
    assert [name for name, _ in network.graph()] == ["bootstrap (conv3)", "conv2", "conv1"]
    with pytest.raises(ls.NotApplicable, match="no gradient"):
        CoarseGIT(hidden=4, bins=64, width=32).build(model, {"act1": (12, 4, 4)}, 1, seeded())


@pytest.mark.parametrize(
    ("extra", "modules"),
    [(-1, ["fc", "conv2", "conv1"]), (1, ["fc", "conv3", "conv2", "conv2", "conv1"]), (-2, ["fc", "conv1"])],
)
def test_a_wrong_depth_costs_accuracy_and_is_kept_in_the_file(extra, modules, tmp_path):
    model, path = lenet(), tmp_path / "inverter.safetensors"
    wrong, right = (fitted(model, extra_links=n) for n in (extra, 0))
    assert [step.link.name for step in wrong.network._plan] == modules
    read = {name for step in wrong.network._plan for name in step.link.parameters}
    assert read == {name for name, _ in model.named_parameters()}  # the real client's gradients, all of them
    assert wrong.held_out > right.held_out
    wrong.save(path)
    image = seen(model, blobs(1, seed=7))
    again = ls.load_inverter(path, model)(image, generator=seeded()).images
    assert torch.equal(again, wrong(image, generator=seeded()).images)


def test_a_chain_can_be_too_short_to_be_mistaken():
    with pytest.raises(ls.NotApplicable, match="too few"):
        fitted(extra_links=-3)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("leakscope:lenet-lti", ["conv1", "conv2", "conv3", "fc"]),
        ("leakscope:mlp?hidden=8,6", ["fc1", "fc2", "head"]),
        ("leakscope:resnet20", ["stem", *(f"layer{i}.{j}" for i in (1, 2, 3) for j in (0, 1, 2)), "linear"]),
        ("leakscope:april-b?dim=8&depth=2", ["stem", "blocks.0", "blocks.1", "head"]),
    ],
)
def test_models_are_parsed_into_links(name, links):
    model = ls.load_model(name, num_classes=4, image_size=8, seed=0)
    found = links_of(model)
    assert [link.name for link in found] == links
    owned = [parameter for link in found for parameter in link.parameters]
    assert sorted(owned) == sorted(name for name, _ in model.named_parameters())


def test_ridge_finds_a_linear_map_and_is_not_led_by_noise():
    rows = torch.randn(300, 5, generator=seeded(1))
    truth = torch.randn(5, 3, generator=seeded(2))
    weights, bias, strength = ridge(rows, rows @ truth + 2, held=30)
    assert torch.allclose(weights, truth, atol=1e-3)
    assert torch.allclose(bias, torch.full((3,), 2.0), atol=1e-3)
    many, noise = torch.randn(300, 200, generator=seeded(5)), torch.randn(300, 3, generator=seeded(3))
    assert ridge(many, noise, held=30)[2] > 100 * strength
    wide = torch.randn(20, 50, generator=seeded(4))  # fewer rows than columns
    assert ridge(wide, wide[:, :2], held=4)[0].shape == (50, 2)


FIT = """
import sys, torch, leakscope as ls
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cases import blobs, killed, lenet, seeded
method, protocol, defences = killed(sys.argv[3])
def tell(progress):
    print(progress.step, flush=True)
inverter = method.fit(blobs(40), protocol, model=lenet(), generator=seeded(), callback=tell, defences=defences,
                      checkpoint=ls.Checkpoint(folder=Path(sys.argv[2]), every=0.0))
print("digest", inverter.digest)
"""


@pytest.mark.parametrize("case", ["gradients", "defended features"])
def test_a_killed_fit_goes_on_to_the_same_weights(tmp_path, case):
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": str(Path(ls.__file__).parents[1])}
    command = [sys.executable, "-c", FIT, here, str(tmp_path), case]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    for line in first.stdout:
        if line.strip() == "25":
            first.send_signal(signal.SIGKILL)
            break
    first.wait()
    assert list(tmp_path.glob("training.safetensors"))
    second = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    lines = second.stdout.split()
    assert 20 < int(lines[0]) < 60  # it went on, it did not start over
    method, protocol, defences = killed(case)
    whole = method.fit(blobs(40), protocol, model=lenet(), defences=defences, generator=seeded())
    assert lines[-1] == whole.digest
    assert not list(tmp_path.glob("training.safetensors"))


@pytest.mark.parametrize("name", ["lti", "dci"])
def test_a_budget_of_seconds_ends_a_fit(name):
    protocol = ls.Split(cut="act2") if name == "dci" else ls.FedSGD()
    small = {"hidden": 16} if name == "lti" else {"width": 4}
    method = replace(ls.attack(name, steps=10**6, batch=8, **small), seconds=2.0)
    began = time.monotonic()
    inverter = method.fit(blobs(40), protocol, model=lenet(), generator=seeded())
    assert time.monotonic() - began < 20
    assert inverter.steps < 10**6
    stages = [row[0] for row in inverter.trace]
    trained = {stage for stage, step, _, _ in inverter.trace if step > 0}
    assert trained == set(stages)  # every stage had its share
    outcome = inverter(seen(lenet(), blobs(1, seed=3), protocol), generator=seeded()).outcome
    assert outcome.status is ls.Status.OUT_OF_TIME
    assert "were up" in outcome.message


def test_from_attack_starts_there():
    model, batch = lenet(), blobs(2, seed=7)
    picture = ls.Batch(images=batch.images.flip(0), labels=batch.labels)

    def first(observation, *, generator, callback=None):
        outcome = ls.Outcome(status=ls.Status.FINISHED, message="")
        # In another order than the labels: the engine must put them where they belong.
        return ls.Reconstruction(images=picture.images, labels=batch.labels.flip(0), energy=0, outcome=outcome)

    assert batch.labels[0] != batch.labels[1]
    observation = seen(model, batch)
    attack = ls.attack("inverting-gradients", steps=1, init=ls.from_attack(first))
    found = attack(observation, generator=seeded())
    assert torch.allclose(found.images, batch.images, atol=1e-5)  # the best point measured is the start itself
    assert found.energy < 0.1
    noisy = ls.attack("inverting-gradients", steps=1, init=ls.from_attack(first, noise=0.5))
    assert not torch.allclose(noisy(observation, generator=seeded()).images, batch.images, atol=0.05)
    with pytest.raises(ls.BadInput, match="configured already"):
        ls.from_attack(first, steps=3)


def test_bad_settings_are_refused():
    for options in ({"steps": 0}, {"hidden": 0}, {"lr": 0.0}, {"batch": 0}, {"pairs": -1}):
        with pytest.raises(ls.BadInput):
            ls.attack("lti", **options)
    with pytest.raises(ls.BadInput, match="too few"):
        ls.attack("lti", steps=1, hidden=4).fit(blobs(3), ls.FedSGD(), model=lenet(), batch_size=2, generator=seeded())
    inverter = fitted()
    assert replace(inverter, any_weights=True).digest == inverter.digest
