"""The loop: seeds, resumption, stopping, restarts, and what it keeps."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import leakscope as ls
from leakscope.attacks import differentiate, micro_batches
from leakscope.attacks.optimisation import Checkpoint
from leakscope.attacks.parts import cosine_decay, decay_at, grey, uniform
from leakscope.attacks.terms import Match, Weighted
from leakscope.functional.distances import squared_l2


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def seen():
    model = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=16, seed=0)
    batch = ls.bundled_batch(["cat"], size=16)
    return ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded(0))


def ig(**options):
    return ls.attack("inverting-gradients", **({"steps": 20} | options))


@pytest.mark.parametrize("name", ["inverting-gradients", "dlg", "tag"])
def test_same_seed_same_bits(seen, name):
    attack = ls.attack(name, steps=5)
    one, two, other = (attack(seen, generator=seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one.images, two.images)
    assert one.trace == two.trace
    assert not torch.equal(one.images, other.images)


@pytest.mark.parametrize("name", ["inverting-gradients", "dlg", "tag"])
def test_interrupted_and_resumed_gives_the_same_bits(seen, name, tmp_path):
    attack = ls.attack(name, steps=12)
    whole = attack(seen, generator=seeded())
    keeping = replace(attack, checkpoint=Checkpoint(folder=tmp_path, every=0))

    def pull_the_plug(progress):
        if progress.step == 7:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        keeping(seen, generator=seeded(), callback=pull_the_plug)
    steps = []
    resumed = keeping(seen, generator=seeded(), callback=lambda p: steps.append(p.step))
    assert steps[0] == 7
    assert torch.equal(resumed.images, whole.images)
    assert resumed.trace == whole.trace
    assert resumed.energy == whole.energy


KILLED = """
import sys, torch, leakscope as ls
from pathlib import Path
torch.set_num_threads(1)
model = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=16, seed=0)
batch = ls.bundled_batch(["cat"], size=16)
seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(0))
attack = ls.attack("inverting-gradients", steps=400, checkpoint=ls.Checkpoint(folder=Path(sys.argv[1]), every=0))
rec = attack(seen, generator=torch.Generator().manual_seed(1), callback=lambda p: print(p.step, flush=True))
torch.save(rec.images, sys.argv[2])
"""


def test_sigkill_and_resume_gives_the_same_bits(tmp_path):
    def start(folder, result):
        command = [sys.executable, "-c", KILLED, str(tmp_path / folder), str(tmp_path / result)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    whole = start("whole", "whole.pt")
    whole.communicate(timeout=120)
    killed = start("killed", "killed.pt")
    for line in killed.stdout:
        if int(line) >= 150:
            killed.send_signal(signal.SIGKILL)
            break
    killed.wait()
    assert not (tmp_path / "killed.pt").exists()
    again = start("killed", "killed.pt")
    first = int(again.stdout.readline())
    again.communicate(timeout=120)
    assert first > 100
    assert torch.equal(torch.load(tmp_path / "whole.pt"), torch.load(tmp_path / "killed.pt"))


ORPHANS = """
import os, torch, leakscope as ls
if __name__ == "__main__":
    model = ls.load_model("leakscope:lenet-dlg", num_classes=10, image_size=16, seed=0)
    batch = ls.bundled_batch(["cat"], size=16)
    seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(0))
    attack = ls.attack("inverting-gradients", steps=1_000_000, population=2, workers=2)
    attack(seen, generator=torch.Generator().manual_seed(1), callback=lambda p: print(p.restart, flush=True))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    heard = set()
    for line in parent.stdout:
        heard.add(line.strip())
        if heard == {"0", "1"}:
            break
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert len(children) >= 2
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [child for child in children if _alive(child)]


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_checkpoint_is_not_taken_for_another_runs(seen, tmp_path):
    attack = ig(checkpoint=Checkpoint(folder=tmp_path, every=0))
    attack(seen, generator=seeded(1))
    other = attack(seen, generator=seeded(2))
    assert torch.equal(other.images, ig()(seen, generator=seeded(2)).images)


def test_a_checkpoint_is_not_shared_between_servers_that_know_more_or_less(seen, tmp_path):
    attack = ig(checkpoint=Checkpoint(folder=tmp_path, every=0))
    attack(seen, generator=seeded())
    wrong = replace(seen, labels=seen.labels + 1)
    assert torch.equal(attack(wrong, generator=seeded()).images, ig()(wrong, generator=seeded()).images)


def test_an_unreadable_checkpoint_is_named(seen, tmp_path):
    (tmp_path / "restart-0.pt").write_bytes(b"rubbish")
    with pytest.raises(ls.BadInput, match=r"restart-0\.pt cannot be read.*Delete it"):
        ig(checkpoint=Checkpoint(folder=tmp_path))(seen, generator=seeded())


def test_ctrl_c_keeps_what_is_done(seen):
    def interrupt(progress):
        if progress.step == 5:
            raise KeyboardInterrupt

    rec = ig()(seen, generator=seeded(), callback=interrupt)
    assert rec.outcome.status is ls.Status.INTERRUPTED
    assert rec.steps == 5
    assert rec.energy == min(rec.trace[0])


def test_it_keeps_the_measured_point(seen):
    """The loss stored beside an image is the loss of that image, not of the one a step later."""
    rec = ig(steps=30, tv=0.0)(seen, generator=seeded())
    signal = seen.protocol.replay(seen.model, rec.images, rec.labels)
    names = list(seen.gradients)
    distance = 1 - torch.nn.functional.cosine_similarity(
        torch.cat([signal[n].flatten() for n in names]), torch.cat([seen.signal[n].flatten() for n in names]), dim=0
    )
    assert rec.energy == min(rec.trace[0])
    assert float(distance) == pytest.approx(rec.energy, rel=1e-3)


def test_attacks_get_closer_to_the_truth(seen):
    batch = ls.bundled_batch(["cat"], size=16)
    start = ig(steps=1)(seen, generator=seeded())
    end = ig(steps=300)(seen, generator=seeded())
    gap = [float((r.images - batch.images).square().mean()) for r in (start, end)]
    assert gap[1] < gap[0] / 5


def test_restarts_keep_the_lowest_loss_whatever_runs_them(seen):
    alone = ig(population=3)(seen, generator=seeded())
    assert len(alone.trace) == 3
    assert alone.energy == min(alone.evidence["energies"])
    assert alone.evidence["energies"][alone.evidence["restart"]] == alone.energy
    assert len(set(alone.evidence["energies"])) == 3
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # as many as each of two workers gets
    try:
        told = []
        spread = ig(population=3, workers=2)(seen, generator=seeded(), callback=told.append)
        again = ig(population=3)(seen, generator=seeded())
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(spread.images, again.images)
    assert spread.evidence["energies"] == again.evidence["energies"]
    assert {p.restart for p in told} == {0, 1, 2}


def test_restarts_end_with_the_first_that_reaches_the_target(seen):
    attack = ig(steps=300, population=4, stop=ls.Stop(target=0.05))
    alone = attack(seen, generator=seeded())
    assert alone.outcome.status is ls.Status.TARGET_REACHED
    assert len(alone.trace) == 1
    spread = replace(attack, workers=2)(seen, generator=seeded())
    assert len(spread.trace) == 1
    assert torch.allclose(spread.images, alone.images, atol=1e-3)


def test_workers_receive_a_model_from_a_users_file(tmp_path):
    source = (
        "import torch\nclass Net(torch.nn.Linear):\n    def forward(self, x): return super().forward(x.flatten(1))\n"
    )
    (tmp_path / "mine.py").write_text(source + "def make(): return Net(48, 10)\n")
    model = ls.load_model(f"{tmp_path}/mine.py:make", image_size=4, num_classes=10)
    batch = ls.bundled_batch(["cat"], size=4)
    seen = ls.observe(model, batch, protocol=ls.FedSGD(), threat=ls.threats.WITH_LABELS, generator=seeded(0))
    rec = ig(steps=2, population=2, workers=2)(seen, generator=seeded())
    assert len(rec.trace) == 2


def test_stops(seen):
    target = ig(steps=300, stop=ls.Stop(target=0.05))(seen, generator=seeded())
    assert target.outcome.status is ls.Status.TARGET_REACHED
    assert target.steps < 300
    assert target.energy <= 0.05
    plateau = ig(steps=300, lr=0.0, stop=ls.Stop(patience=4))(seen, generator=seeded())
    assert plateau.outcome.status is ls.Status.PLATEAU
    assert plateau.steps == 5
    started = time.monotonic()
    timed = ig(steps=100_000, stop=ls.Stop(seconds=1.0))(seen, generator=seeded())
    assert timed.outcome.status is ls.Status.OUT_OF_TIME
    assert time.monotonic() - started < 10


def test_not_a_number_is_an_outcome(seen):
    poisoned = replace(seen, signal={n: torch.full_like(v, math.nan) for n, v in seen.signal.items()})
    rec = ig()(poisoned, generator=seeded())
    assert rec.outcome.status is ls.Status.DIVERGED
    assert not rec.outcome.ok
    assert torch.isfinite(rec.images).all()


def test_which_gradient_is_used(seen):
    fine = ig(steps=2)(seen, generator=seeded())
    assert fine.evidence["gradient"] == "fast"
    assert fine.evidence["gradient_error"] < 0.01
    assert ig(steps=2, gradient="exact")(seen, generator=seeded()).evidence["gradient"] == "exact"
    assert ls.attack("dlg", steps=1)(seen, generator=seeded()).evidence["gradient"] == "exact"


def test_a_finer_step_is_tried_before_the_exact_gradient(seen, monkeypatch):
    """One-sided differences bend in proportion to the step: with a large one the first try is off by over 2 %."""
    monkeypatch.setitem(differentiate.RELATIVE_STEP, torch.float32, 1e-3)
    monkeypatch.setattr(micro_batches, "FINER", 1e-3)
    rec = ig(steps=1)(seen, generator=seeded())
    assert rec.evidence["gradient"] == "fast, finer step"
    assert rec.evidence["gradient_error"] < 0.02


def test_the_exact_gradient_takes_over_when_the_fast_one_disagrees():
    """Train-mode BatchNorm over two 1×1 maps divides by almost nothing: no finite step is small enough there."""
    model = ls.load_model("torchvision:resnet18", num_classes=10, image_size=32, seed=0)
    batch = ls.bundled_batch(["cat", "astronaut"], size=32)
    seen = ls.observe(model, batch, protocol=ls.FedSGD(mode="train"), generator=seeded(0))
    rec = ig(steps=1)(seen, generator=seeded())
    assert rec.evidence["gradient"] == "exact"
    assert rec.evidence["gradient_error"] > 0.02


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 9},
        {"tv": 0.5},
        {"lr": 0.01},
        {"init": grey},
        {"init": uniform},
        {"transforms": ()},
        {"project": None},
        {"schedule": cosine_decay},
        {"schedule": decay_at(0.1)},
    ],
)
def test_every_parameter_changes_the_result(seen, change):
    base = ig(steps=10)(seen, generator=seeded())
    changed = ls.attack("inverting-gradients", **({"steps": 10} | change))(seen, generator=seeded())
    assert not torch.equal(base.images, changed.images)


@pytest.mark.parametrize("change", [{"alpha": 5.0}, {"decay": 5.0}, {"lr": 0.2}], ids=str)
def test_every_parameter_of_tag_changes_the_result(seen, change):
    base = ls.attack("tag", steps=6)(seen, generator=seeded())
    assert not torch.equal(base.images, ls.attack("tag", steps=6, **change)(seen, generator=seeded()).images)


def test_members_see_their_peers(seen):
    """Population terms get the other members' images, detached."""
    counted = []

    class Peers:
        def watches(self, observation):
            return ()

        def bind(self, observation):
            def count(candidate, evaluation):
                counted.append(len(candidate.peers))
                assert all(not peer.requires_grad for peer in candidate.peers)
                return candidate.inputs.square().sum()

            return count

    from leakscope.attacks.engine import run_together

    attack = ls.Optimisation(terms=(Weighted(term=Peers()),), steps=2, gradient="exact", population=3)
    results = run_together(attack, seen, [0, 1, 2], generator=seeded(), callback=None, seconds=None)
    assert len(results) == 3
    assert set(counted) == {2}


def test_bad_settings_are_refused(seen):
    for change, message in (
        ({"steps": -1}, "steps is -1; it must be at least 1"),
        ({"population": 0}, "population is 0"),
        ({"gradient": "slow"}, "accepted: 'auto', 'exact' or 'fast'"),
    ):
        with pytest.raises(ls.BadInput, match=message):
            ig(**change)
    with pytest.raises(ls.UnknownName, match="Did you mean 'steps'"):
        ls.attack("inverting-gradients", stps=3)
    with pytest.raises(ls.UnknownName, match="Did you mean 'inverting-gradients'"):
        ls.attack("inverting-gradient")
    with pytest.raises(ls.BadInput, match="nothing to minimise"):
        ls.Optimisation(terms=(), steps=1)
    withheld = replace(seen, signal={"unknown": torch.zeros(1)})
    with pytest.raises(ls.NotApplicable, match="no parameter's gradient"):
        ls.Optimisation(terms=(Weighted(term=Match(squared_l2)),), steps=1)(withheld, generator=seeded())


def test_callbacks_tell_the_truth(seen):
    told = []
    rec = ig(steps=4)(seen, generator=seeded(), callback=told.append)
    assert [p.step for p in told] == [1, 2, 3, 4]
    assert [p.loss for p in told] == list(rec.trace[0])
    assert told[-1].images().shape == (1, 3, 16, 16)
