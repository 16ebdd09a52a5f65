"""What a defence costs is measured by a cell of its own, and reaches the report."""

from pathlib import Path

import pytest

from leakscope.audit.campaign_file import parse_campaign
from leakscope.audit.cell import Role
from leakscope.audit.executors import InProcess
from leakscope.audit.findings_file import write_findings
from leakscope.audit.judge import judge
from leakscope.audit.plan import cells_of
from leakscope.audit.runner import begin, run_campaign
from leakscope.report.costs import cost_of
from leakscope.report.load import load

CAMPAIGN = """
name = "costs"
[models.mlp]
name = "leakscope:mlp?hidden=16"
image_size = 8
[images.photos]
from = ["bundled:cat"]
[clients.sgd]
type = "fedsgd"
[defences.noise]
steps = [{ type = "gaussian-noise", scale = 30.0 }]
[defences.few]
steps = [{ type = "top-k", share = 0.1 }]
[defences.fixed]
steps = [{ type = "fixed-position-embedding" }]
[attacks.form]
type = "linear-layer"
[[targets]]
models = ["mlp"]
images = ["photos"]
clients = ["sgd"]
defences = ["none", "noise", "few", "fixed"]
[controls]
self_tests = false
identifiability = false
prior_only = false
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    campaign = parse_campaign(CAMPAIGN)
    run_campaign(begin(campaign, cells_of(campaign, Path()), folder), folder, InProcess(folder, Path()))
    write_findings(judge(folder), folder)
    return folder


def test_costs_reach_the_report(out):
    audit = load(out)
    costs = {finding.defence: cost_of(audit, finding) for finding in audit.findings.findings}
    assert costs["none"] is None
    assert costs["noise"].values["accuracy_lost"] > 0.3  # noise of thirty times the gradient teaches nothing
    assert costs["few"].values["bytes"] < 0.3
    assert "accuracy" in costs["noise"].text


def test_a_defence_that_the_small_network_cannot_take_is_refused(out):
    audit = load(out)
    (cell,) = [c for c in audit.cells.values() if c.role is Role.COST and c.defence_name == "fixed"]
    assert audit.records[cell.key].status == "refused"
