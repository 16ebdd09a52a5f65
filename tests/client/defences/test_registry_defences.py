"""Every registered defence: by name, deterministic, harmless to the model, sizes that add up."""

import dataclasses

import pytest
import torch
from defended import mlp, sent, setting, vit

import leakscope as ls
from leakscope.bibliography import BIBLIOGRAPHY
from leakscope.client import DEFENCES, defence, defence_from, defence_from_text
from leakscope.types import Defence

ON_VIT = {"withhold", "fixed-position-embedding"}
DRAWS = {"gaussian-noise", "laplace-noise", "dp-sgd", "random-sparsification", "qsgd", "mixup", "instahide"}
DRAWS |= {"larger-batch", "secure-aggregation"}


def start(name):
    return setting(vit() if name in ON_VIT else mlp())


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_all_the_issue_asks_for():
    assert set(DEFENCES) >= {
        *("gaussian-noise", "laplace-noise", "clipping", "dp-sgd", "top-k", "random-sparsification", "sign", "qsgd"),
        *("withhold", "fixed-position-embedding", "soteria", "mixup", "instahide", "larger-batch"),
        *("more-local-steps", "secure-aggregation"),
    }


@pytest.mark.parametrize("name", DEFENCES)
def test_contract(name):
    made = defence(name)
    assert Defence in type(made).__mro__
    assert made.name == name
    assert DEFENCES[name].cites in BIBLIOGRAPHY
    assert DEFENCES[name].summary.endswith(".")
    before = start(name)
    weights = {n: v.clone() for n, v in before.model.state_dict().items()}
    first, again, other = (sent(made, seed=seed, start=before) for seed in (0, 0, 1))
    assert same(first, again), "the same seed gave other bits"
    assert same(first, other) is (name not in DRAWS)
    assert not same(first, sent(start=before)), "it changes nothing"
    assert same(weights, before.model.state_dict()), "the model did not come back as it was"
    assert all(bool(torch.isfinite(value).all()) for value in first.values())
    dense = sum(value.numel() * value.element_size() for value in first.values())
    assert 0 < made.bytes_sent(first) <= dense
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(made)[0].name, 1)


def test_from_plain_data():
    assert defence_from({"type": "top-k", "share": 0.2}) == defence("top-k", share=0.2)
    assert defence_from({"type": "withhold", "what": ["head.*", "pos_embed"]}).what == ("head.*", "pos_embed")
    with pytest.raises(ls.UnknownName, match="Did you mean 'share'"):
        defence_from({"type": "top-k", "shar": 0.2})
    with pytest.raises(ls.UnknownName, match="Did you mean 'gaussian-noise'"):
        defence_from({"type": "gausian-noise"})
    with pytest.raises(ls.BadInput, match="needs a 'type'"):
        defence_from({"scale": 1.0})
    with pytest.raises(ls.BadInput, match="'share' of top-k is 'all'; it must be a number"):
        defence_from({"type": "top-k", "share": "all"})


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("gaussian-noise", {"scale": -1.0}, "at least 0"),
        ("gaussian-noise", {"per": "layer"}, "tensor, signal"),
        ("laplace-noise", {"scale": float("nan")}, "number"),
        ("clipping", {"norm": 0.0}, "above 0"),
        ("top-k", {"share": 0.0}, "above 0 and at most 1"),
        ("random-sparsification", {"share": 2.0}, "at most 1"),
        ("dp-sgd", {"clip": 0.0}, "above 0"),
        ("qsgd", {"levels": 0}, "at least 1"),
        ("sign", {"scaled": 1}, "true or false"),
        ("withhold", {"what": ()}, "role"),
        ("instahide", {"mix": 1}, "at least 2"),
        ("mixup", {"alpha": 0.0}, "above 0"),
        ("larger-batch", {"size": 0}, "at least 1"),
        ("more-local-steps", {"steps": 0}, "at least 1"),
        ("secure-aggregation", {"clients": 0}, "at least 1"),
        ("soteria", {"share": 1.5}, "at most 1"),
        ("fixed-position-embedding", {"temperature": 0.5}, "above 1"),
    ],
)
def test_refusals(name, options, told):
    with pytest.raises(ls.BadInput, match=told):
        defence(name, **options)


def test_a_defence_as_it_is_typed():
    assert defence_from_text("gaussian-noise?scale=0.25") == defence("gaussian-noise", scale=0.25)
    assert defence_from_text("withhold?what=position-embedding") == defence("withhold", what="position-embedding")
    with pytest.raises(ls.BadInput, match="a number"):
        defence_from_text("gaussian-noise?scale=much")
    with pytest.raises(ls.BadInput, match="key=value"):
        defence_from_text("gaussian-noise?scale")
