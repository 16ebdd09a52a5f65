import pytest
import torch

import leakscope as ls
from leakscope.attacks.labels import known_or_recovered
from leakscope.functional.labels import label_accuracy


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def observe(name, labels, *, size=16, **protocol):
    model = ls.load_model(name, num_classes=10, image_size=size, seed=0)
    names = [ls.bundled_names()[i % len(ls.bundled_names())] for i in range(len(labels))]
    batch = ls.bundled_batch(names, size=size, labels=labels)
    return ls.observe(model, batch, protocol=ls.FedSGD(**protocol), generator=seeded())


@pytest.mark.parametrize("rule", ["idlg", "gradinversion", "counting"])
def test_every_rule_finds_one_label(rule):
    assert ls.recover_labels(observe("leakscope:resnet20", [6]), rule).tolist() == [6]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_counting_finds_repeats_on_a_real_model(reduction):
    truth = [1, 1, 1, 4, 4, 9, 0, 0]
    seen = observe("leakscope:resnet20", truth, reduction=reduction)
    assert ls.recover_labels(seen).tolist() == sorted(truth)
    assert label_accuracy(ls.recover_labels(seen, "gradinversion"), torch.tensor(truth), 10) <= 0.5


def test_the_source_is_named_and_falls_through():
    seen = observe("leakscope:lenet-dlg", [3])
    assert known_or_recovered(seen, seeded()).source == "counting"
    from dataclasses import replace

    no_bias = replace(seen, signal={n: v for n, v in seen.signal.items() if n != "fc.bias"})
    guess = known_or_recovered(no_bias, seeded())
    assert guess.source == "idlg"
    assert guess.values.tolist() == [3]
    headless = replace(seen, signal={n: v for n, v in seen.signal.items() if not n.startswith("fc")})
    with pytest.raises(ls.NotApplicable, match=r"no rule recovers them.*not in the signal"):
        known_or_recovered(headless, seeded())
    with pytest.raises(ls.NotApplicable, match="one sample"):
        ls.recover_labels(observe("leakscope:lenet-dlg", [3, 4]), "idlg")
    with pytest.raises(ls.UnknownName, match="label rule"):
        ls.recover_labels(seen, "psychic")


def test_dlg_recovers_the_label_by_optimisation():
    seen = observe("leakscope:lenet-dlg", [8])
    rec = ls.attack("dlg", steps=25)(seen, generator=seeded(1))
    assert rec.labels.tolist() == [8]
