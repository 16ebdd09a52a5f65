"""How long a campaign will take: steps are counted as the attack itself reports them."""

from pathlib import Path

import pytest

from leakscope.audit import estimate as module
from leakscope.audit.campaign_file import parse_campaign
from leakscope.audit.plan import cells_of
from leakscope.types import Progress

CAMPAIGN = """
name = "estimate"
[models.lenet]
name = "leakscope:lenet-dlg"
image_size = 8
num_classes = 10
[images.photographs]
from = ["bundled:cat,coffee"]
batch_size = 1
[clients.sgd]
type = "fedsgd"
[attacks.plain]
type = "inverting-gradients"
steps = 100
population = 3
[attacks.searched]
type = "tuned"
steps = 100
[[targets]]
models = ["lenet"]
images = ["photographs"]
clients = ["sgd"]
[controls]
prior_only = false
self_tests = false
identifiability = false
"""


@pytest.fixture
def clock(monkeypatch):
    """A cell takes 5 s before its first step, 2 s for each step, and 3 s afterwards."""
    now = [0.0]
    ran = []

    def run_cell(cell, folder, *, base, callback):
        ran.append(cell)
        now[0] += 5
        runs = 2 if cell.attack == "tuned" else 1  # trials, then the run with the best settings
        restarts = cell.options.get("population", 1)
        total = runs * cell.options["steps"]
        for step in range(total * restarts):
            now[0] += 2
            callback(
                Progress(
                    step=step % total + 1, steps=total, loss=1.0, best=1.0, seconds=0.0, restart=0, restarts=restarts
                )
            )
        now[0] += 3

    monkeypatch.setattr(module, "run_cell", run_cell)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return ran


def test_every_step_of_every_run_is_counted(clock):
    cells = cells_of(parse_campaign(CAMPAIGN), Path())
    found = module.estimate(cells, Path())
    assert {found[cell.key] for cell in cells if cell.attack == "inverting-gradients"} == {5 + 2 * 300 + 3}
    assert {found[cell.key] for cell in cells if cell.attack == "tuned"} == {5 + 2 * 200 + 3}
    assert len(found) == 4
    assert len(clock) == 2, "one cell of each kind is measured"
    assert all(cell.options["steps"] == 2 for cell in clock)
