"""Targets whose answer is known by construction, run through the real path into a campaign's folder."""

from dataclasses import dataclass, field, replace
from functools import cache

import torch

import leakscope as ls
from leakscope.attacks import known_to_leak
from leakscope.audit.cell import CELLS, MANIFEST, Cell, Manifest, Role
from leakscope.audit.controls import without_signal
from leakscope.audit.record import REFUSED
from leakscope.audit.store import begin_record, ensure_writable, write_plain, write_record
from leakscope.client.registry import defence_from
from leakscope.random import fork

TANH, RELU, SIGMOID = (f"leakscope:mlp?hidden=64&activation={name}" for name in ("tanh", "relu", "sigmoid"))
LENET, VIT, VIT_A = "leakscope:lenet-dlg", "leakscope:april-b", "leakscope:april-a"
IG = {"steps": 100}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A target, and the levels that are right for it. ``signal``: true, zero or noise."""

    name: str
    model: str
    attack: str
    right: frozenset
    size: int = 8
    images: tuple = ("cat",)
    channels: int = 3
    options: dict = field(default_factory=dict)
    defences: tuple = ()
    seeds: tuple = (0,)
    other: str | None = None
    """the image whose gradient is sent in place of the client's own"""
    signal: str = "true"
    control: bool = True


@cache
def load(name, size, channels):
    return ls.load_model(name, image_size=size, num_classes=10, channels=channels, seed=0)


def cell(case, role=Role.ATTACK, seed=0):
    return Cell(
        role=role,
        target=case.name,
        model_name=case.model,
        images_name=case.name,
        client_name="sgd",
        defence_name="none",
        attacker="self-test" if role is Role.SELF_TEST else "server",
        attack_name=case.attack,
        model={"name": case.model, "image_size": case.size},
        images={"from": [f"bundled:{','.join(case.images)}"], "signal": case.signal, "other": case.other},
        batch=0,
        client={"type": "fedsgd"},
        defences=case.defences,
        attack=case.attack,
        options=case.options,
        seed=seed,
    )


def changed(seen, kind, generator):
    if kind == "true":
        return seen
    if kind == "zero":
        return replace(seen, signal={name: torch.zeros_like(value) for name, value in seen.signal.items()})
    return without_signal(seen, fork(generator, "another noise"))


def run(case, one, folder):
    """Observe, attack, score, record."""
    model = load(case.model, case.size, case.channels)
    batch = ls.bundled_batch(list(case.images), size=case.size, channels=case.channels)
    trained = batch
    if case.other is not None:
        trained = replace(batch, images=ls.bundled_batch([case.other], size=case.size, channels=case.channels).images)
    root = torch.Generator().manual_seed(one.seed)
    steps = [defence_from(step) for step in case.defences]
    protocol = ls.FedSGD()
    seen = ls.observe(model, trained, protocol=protocol, defences=steps, generator=fork(root, "client"))
    seen = changed(seen, case.signal, root)
    if one.role is Role.CONTROL:
        seen = without_signal(seen, fork(root, "control"))
    attack = ls.attack(case.attack, **case.options)
    begun = begin_record(
        run=one.key,
        seed=one.seed,
        stream="batch/0",
        model=model,
        client=protocol,
        threat=seen.threat,
        attack_name=case.attack,
        attack=attack,
        cell=one.key,
        role=str(one.role),
    )
    ensure_writable(folder)
    try:
        found = attack(seen, generator=fork(root, "attack"))
    except ls.NotApplicable as refusal:
        return write_plain(folder, replace(begun, status=REFUSED, message=str(refusal)))
    scores = ls.score(found, batch, ["mse", "psnr", "ssim"] if case.size >= 11 else ["mse", "psnr"])
    return write_record(folder, begun, batch=batch, reconstruction=found, scores=scores)


def self_test(attack):
    leaky = known_to_leak(attack)
    return Case(
        name="self-test",
        model=leaky.model["name"],
        size=leaky.model["image_size"],
        attack=attack,
        options=dict(leaky.options),
        right=frozenset(),
    )


def campaign(cases, out, *, self_tests=True):
    """Run ``cases`` into the folder ``out``, with a control each, and the self-tests of the attacks."""
    planned = [(case, cell(case, seed=seed)) for case in cases for seed in case.seeds]
    planned += [(case, cell(case, Role.CONTROL, seed)) for case in cases for seed in case.seeds if case.control]
    if self_tests:
        tests = [self_test(attack) for attack in sorted({case.attack for case in cases if case.signal != "true"})]
        planned += [(test, cell(test, Role.SELF_TEST)) for test in tests]
    out.mkdir(parents=True, exist_ok=True)
    for case, one in planned:
        run(case, one, out / CELLS / one.key)
    write_manifest(out, [one for _, one in planned])
    return out


def write_manifest(out, cells):
    manifest = Manifest(name="calibration", created="", campaign={"budget": {"steps": 150}}, cells=tuple(cells))
    (out / MANIFEST).write_text(manifest.to_text(), encoding="utf-8")
