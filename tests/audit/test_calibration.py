"""Verdicts on targets whose answer is known by construction.

No exact leak may be called "nothing found", and nothing that holds no information may be called recognisable.
"""

import pytest
from calibration_targets import IG, LENET, RELU, SIGMOID, TANH, VIT, VIT_A, Case, campaign

from leakscope.audit.findings import Level
from leakscope.audit.judge import judge

EXACT = frozenset({Level.EXACT})
NO_INFORMATION = frozenset({Level.NOTHING, Level.UNKNOWN, Level.TRACES})
FOUND = frozenset({Level.EXACT, Level.RECOGNISABLE})


def noisy(scale):
    return ({"type": "gaussian-noise", "scale": scale},)


def exact():
    for image in ("cat", "astronaut", "brain", "handwriting"):
        yield Case(name=f"linear {image}", model=TANH, attack="linear-layer", size=16, images=(image,), right=EXACT)
    yield Case(name="linear grey", model=RELU, attack="linear-layer", size=16, channels=1, right=EXACT)
    yield Case(name="recursion", model=SIGMOID, attack="exact-git", size=16, images=("coffee",), right=EXACT)
    yield Case(name="recursion retina", model=TANH, attack="exact-git", size=16, images=("retina",), right=EXACT)
    for image in ("cat", "temple"):
        yield Case(name=f"vit {image}", model=VIT, attack="patch-embedding", size=16, images=(image,), right=EXACT)
    yield Case(name="vit blind", model=VIT, attack="patch-embedding-blind", size=16, images=("flower",), right=EXACT)
    yield Case(name="vit closed", model=VIT_A, attack="april-closed-form", size=16, images=("stairs",), right=EXACT)
    for image in ("cat", "brick"):
        idlg = {"steps": 30}
        yield Case(name=f"idlg {image}", model=SIGMOID, attack="idlg", images=(image,), options=idlg, right=EXACT)
    tv = {"steps": 200, "tv": 1e-5}
    yield Case(name="matching", model=TANH, attack="inverting-gradients", options=tv, right=EXACT)


def no_information():
    matching = {"attack": "inverting-gradients", "options": IG, "right": NO_INFORMATION}
    for image in ("cat", "brain", "handwriting"):
        yield Case(name=f"zero {image}", model=TANH, signal="zero", images=(image,), **matching)
    for image in ("cat", "coffee", "brain", "camera", "stairs"):
        yield Case(name=f"noise {image}", model=TANH, signal="noise", images=(image,), **matching)
    # Pairs of which some look alike by accident.
    for image, other in (("cat", "raccoon"), ("brain", "retina"), ("camera", "temple"), ("flower", "astronaut")):
        yield Case(name=f"{other} for {image}", model=TANH, other=other, images=(image,), **matching)
    solve = {"attack": "patch-embedding", "size": 16, "right": NO_INFORMATION}
    yield Case(name="exact, but another", model=VIT, other="coffee", **solve)
    for image in ("cat", "temple", "handwriting"):
        yield Case(name=f"strong noise {image}", model=TANH, defences=noisy(100.0), images=(image,), **matching)
    yield Case(name="noise, two images", model=TANH, signal="noise", images=("cat", "coffee"), **matching)
    yield Case(name="noise, three seeds", model=TANH, signal="noise", seeds=(0, 1, 2), **matching)
    yield Case(name="noise, 16 px", model=LENET, size=16, signal="noise", **matching)
    yield Case(name="refused", model=VIT, signal="noise", **solve)


def between():
    matching = {"attack": "inverting-gradients", "options": IG}
    some = frozenset({Level.RECOGNISABLE, Level.TRACES})
    yield Case(name="weak noise", model=TANH, defences=noisy(0.03), right=FOUND, **matching)
    yield Case(name="noise 0.3", model=TANH, defences=noisy(0.3), right=FOUND | some, **matching)
    yield Case(name="noise 3", model=TANH, defences=noisy(3.0), right=NO_INFORMATION | some, **matching)
    yield Case(name="conv net", model=LENET, size=16, images=("camera",), right=FOUND, **matching)
    yield Case(name="two seeds", model=TANH, seeds=(0, 1), images=("astronaut",), right=FOUND, **matching)
    sparse = ({"type": "top-k", "share": 0.1},)
    yield Case(name="sparse", model=TANH, defences=sparse, right=FOUND | some, **matching)


CASES = [*exact(), *no_information(), *between()]


def test_there_are_enough():
    assert len(CASES) >= 30
    assert len({case.name for case in CASES}) == len(CASES)


# One test, since every process that runs a part of it would have to run all the attacks.
@pytest.mark.timeout(900)
def test_verdicts(tmp_path):
    found = {finding.target: finding for finding in judge(campaign(CASES, tmp_path)).findings}
    wrong = {c.name: found[c.name].images[0].reason for c in CASES if found[c.name].level not in c.right}
    assert not wrong

    # Noise is "nothing found", not merely unknown, where the attack is known to work.
    noise = [found[case.name] for case in no_information() if case.name.startswith("noise ")]
    assert sum(one.level is Level.NOTHING for one in noise) >= len(noise) - 1
    assert all("gets through here" in one.summary for one in noise if one.level is Level.NOTHING)

    # What was refused is not called safe.
    assert found["refused"].level is Level.UNKNOWN
    assert found["refused"].evidence.attempts[0].status == "refused"

    # More noise is never worse.
    levels = [found[name].level.severity for name in ("weak noise", "noise 0.3", "noise 3", "strong noise cat")]
    assert levels == sorted(levels, reverse=True)
