"""Boxes flow through observe → attack → score: both gradients agree, and what cannot work says so."""

from __future__ import annotations

import pytest
import torch

import leakscope as ls
from leakscope.attacks.differentiate import Problem, agreement, exact, fast
from leakscope.attacks.member import Member
from leakscope.client.augmentation import Augmentation, Augmented
from leakscope.errors import BadInput, MissingKnowledge, NotApplicable
from leakscope.random import fork

BOXES = torch.tensor([[[0, 0.45, 0.5, 0.8, 0.9]], [[1, 0.5, 0.55, 0.7, 0.6]]])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def model():
    return ls.load_model("leakscope:yolov8n-basic", image_size=64, num_classes=3, seed=0)


@pytest.fixture(scope="module")
def batch():
    return ls.Batch(images=ls.bundled_batch(["astronaut", "cat"], size=64).images, labels=BOXES, names=("a", "b"))


def seen_by(model, batch, threat=ls.threats.WITH_LABELS, protocol=None, **options):
    return ls.observe(
        model, batch, protocol=protocol or ls.FedSGD(mode="train"), threat=threat, generator=seeded(), **options
    )


def test_fast_and_exact_gradients_agree(batch):
    """In float64, where a difference is not drowned by rounding: the assignment is held in the second pass, too."""
    model = ls.load_model("leakscope:yolov8n-basic", image_size=64, num_classes=3, seed=0).to(dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("model.22.cv3") and parameter.ndim == 1:
                parameter.add_(2)  # an untrained head is so sure of nothing that no box would weigh
    seen = seen_by(model, batch)
    attack = ls.attack("inverting-gradients", steps=1)
    problem = Problem.of(seen, attack.terms)
    member = Member(0, attack, seen, seeded(1))
    _, quick = fast(problem, member.leaves, member.candidate, 0.0)
    _, slow = exact(problem, member.leaves, member.candidate, 0.0)
    assert agreement(quick, slow) < 1e-3


@pytest.mark.parametrize("gradient", ["fast", "exact"])
def test_an_attack_runs_and_is_scored(model, batch, gradient):
    seen = seen_by(model, batch)
    found = ls.attack("inverting-gradients", steps=3, gradient=gradient)(seen, generator=seeded(1))
    assert len(set(found.trace[0])) == 3
    assert torch.equal(found.labels, BOXES)
    scores = ls.score(found, batch)
    # Three steps bring back noise, which may be nearer to the other picture: then its boxes are the other's, too.
    assert torch.equal(scores.labels_correct, scores.assignment == torch.arange(2))
    assert scores["psnr"].shape == (2,)


def test_statistics_can_be_matched_on_a_detector(model, batch):
    seen = seen_by(model, batch, ls.threats.WITH_STATISTICS, protocol=ls.FedSGD(mode="train", share_buffers=True))
    found = ls.attack("feasibility", steps=2)(seen, generator=seeded(1))
    assert found.evidence["statistics"] == "exact"


def test_the_sum_is_the_mean_times_the_images(model, batch):
    mean, total = (
        seen_by(model, batch, protocol=ls.FedSGD(mode="train", reduction=reduction)).signal
        for reduction in ("mean", "sum")
    )
    name = "model.22.cv3.0.2.bias"
    torch.testing.assert_close(total[name], 2 * mean[name])


def test_local_training_takes_boxes(model, batch):
    client = ls.FedAvg(steps=2, batch_size=1, mode="train")
    assert "model.0.0.weight" in seen_by(model, batch, protocol=client).signal
    # What has no gradient by design is never sent.
    assert "model.22.dfl.conv.weight" not in seen_by(model, batch).signal


def test_features_of_a_detector_need_no_boxes(model, batch):
    seen = seen_by(model, batch, ls.threats.HONEST_SERVER, protocol=ls.Split(cut="model.2"))
    found = ls.attack("inverting-gradients", steps=2)(seen, generator=seeded(1))
    scores = ls.score(found, batch)
    assert not scores.labels_correct.any()
    assert scores["psnr"].shape == (2,)


def test_hidden_boxes_are_asked_for(model, batch):
    seen = seen_by(model, batch, ls.threats.HONEST_SERVER)
    assert seen.labels is None
    with pytest.raises(MissingKnowledge, match="labels"):
        ls.attack("inverting-gradients", steps=1)(seen, generator=seeded())
    with pytest.raises(NotApplicable, match="boxes"):
        ls.attack("dlg", steps=1)(seen, generator=seeded())


def test_wrong_labels_are_refused_before_anything_runs(model, batch):
    classes = ls.bundled_batch(["astronaut"], size=64, labels=[1])
    with pytest.raises(BadInput, match="learns from boxes"):
        seen_by(model, classes)
    many = ls.Batch(images=batch.images, labels=BOXES + torch.tensor([5.0, 0, 0, 0, 0]))
    with pytest.raises(BadInput, match="Label 6 is out of range"):
        seen_by(model, many)
    classifier = ls.load_model("leakscope:lenet-dlg", image_size=64)
    with pytest.raises(BadInput, match="classes, one per image"):
        seen_by(classifier, batch)


def test_what_would_part_objects_from_boxes_is_refused(model, batch):
    moved = Augmented(client=ls.FedSGD(mode="train"), augmentation=Augmentation())
    with pytest.raises(BadInput, match="would move the objects"):
        moved.replay(model, batch.images, BOXES, generator=fork(seeded(), "client"))
    from leakscope.client.registry import defence_from

    with pytest.raises(BadInput, match="mixes classes"):
        seen_by(model, batch, defences=[defence_from({"type": "mixup"})])
