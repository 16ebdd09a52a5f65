"""The recipes of the feasibility study: every option changes what it says, and the evidence names the statistics."""

import pytest
import torch
from torch import nn

import leakscope as ls
from leakscope.attacks.decoders import pink
from leakscope.attacks.parts import EvenGrey, Filter, median
from leakscope.attacks.terms import BatchStatistics, Candidate, Evaluation, Match
from leakscope.functional.distances import squared_l2
from leakscope.functional.filters import median_filter


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def seen():
    """A ResNet-20 in train mode whose running statistics say something, its buffers shared, public images at hand."""
    model = ls.load_model("leakscope:resnet20", num_classes=10, image_size=8, seed=0)
    public = ls.bundled_batch(["cat", "coffee", "flower", "brick"], size=8)
    with torch.no_grad(), model.mode(True):
        model(public.images)
    return ls.observe(
        model,
        ls.bundled_batch(["astronaut", "temple"], size=8),
        protocol=ls.FedSGD(mode="train", share_buffers=True),
        threat=ls.threats.WITH_PUBLIC_DATA,
        public=public,
        generator=seeded(),
    )


def images(seen, name="feasibility", steps=4, **options):
    return ls.attack(name, steps=steps, gradient="fast", **options)(seen, generator=seeded(1))


def test_the_published_constants():
    made = ls.attack("feasibility")
    assert made.steps == 10_000
    assert [weighted.weight for weighted in made.terms] == [1.0, 0.052, 1.6e-4]
    assert made.optimiser.lr == 0.1
    assert made.schedule.shares == (3 / 8, 5 / 8, 7 / 8)
    assert made.filter is None
    assert ls.attack("feasibility", median_every=500).filter == Filter(every=500, apply=median)
    assert ls.attack("feasibility", largest=10).terms[0].term.largest == 10
    assert ls.attack("huang").terms[2].term == BatchStatistics(statistics="running")


def test_the_recipe_for_train_mode_is_the_studys_with_three_changes():
    made, study = ls.attack("train-mode"), ls.attack("feasibility")
    assert made.decode is pink
    assert made.init == EvenGrey()
    assert made.terms[2].term == BatchStatistics(statistics="auto", relative=True)
    assert [made.terms[0], made.schedule, made.transforms, made.project] == [
        study.terms[0],
        study.schedule,
        study.transforms,
        study.project,
    ]


def test_every_option_changes_the_result(seen):
    plain = images(seen, bn=1.0)
    assert plain.evidence["statistics"] == "exact"
    found = {"exact": plain.images}
    for key, options in {
        "running": {"statistics": "running"},
        "proxy": {"statistics": "proxy"},
        "largest": {"largest": 2},
        "median": {"median_every": 2},
        "weight": {"bn": 0.1},
        "relative": {"relative": True},
    }.items():
        came = images(seen, **{"bn": 1.0, **options})
        assert came.evidence["statistics"] == options.get("statistics", "exact")
        assert not any(torch.equal(came.images, other) for other in found.values()), key
        found[key] = came.images
    assert torch.equal(images(seen, "huang", bn=1.0).images, found["running"])


def test_huang_refuses_statistics_that_say_nothing():
    model = ls.load_model("leakscope:resnet20", num_classes=10, image_size=8, seed=0)
    batch = ls.bundled_batch(["cat"], size=8)
    fresh = ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded())
    with pytest.raises(ls.NotApplicable, match="untrained"):
        ls.attack("huang", steps=1)(fresh, generator=seeded())
    assert images(fresh, steps=1).evidence["statistics"] == "none"


def test_only_the_largest_tensors_are_matched(seen):
    largest = sorted(seen.gradients, key=lambda name: float(seen.signal[name].norm()))[-3:]
    compared = []

    def distance(replayed, observed):
        compared.extend(observed)
        return squared_l2(replayed, observed)

    candidate = Candidate(images=seen.public.images, inputs=seen.public.images, labels=seen.labels)
    Match(distance, largest=3).bind(seen)(candidate, Evaluation(signal=seen.signal))
    shapes = sorted(tuple(seen.signal[name].shape) for name in largest)
    assert sorted(tuple(value.shape) for value in compared) == shapes
    with pytest.raises(ls.BadInput, match="largest is 0"):
        ls.attack("feasibility", largest=0)


def test_the_median_is_the_median():
    x = torch.rand(2, 3, 5, 7, generator=seeded())
    found = median_filter(x)
    assert found.shape == x.shape
    assert torch.equal(found[1, 2, 2, 3], x[1, 2, 1:4, 2:5].flatten().median())
    padded = nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")
    assert torch.equal(found[0, 0, 0, 0], padded[0, 0, :3, :3].flatten().median())
    speck = torch.zeros(1, 1, 5, 5)
    speck[0, 0, 2, 2] = 1
    assert not median_filter(speck).any()
    with pytest.raises(ls.BadInput, match="every 0 steps"):
        Filter(every=0)
