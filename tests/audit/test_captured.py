"""A campaign on captured updates: what a real client sent is attacked, and only if its images replay to it."""

from pathlib import Path

import pytest
import torch

import leakscope as ls
from leakscope.audit.campaign_file import parse_campaign
from leakscope.audit.executors import InProcess
from leakscope.audit.judge import judge
from leakscope.audit.plan import cells_of
from leakscope.audit.runner import begin, run_campaign
from leakscope.capture import save_update, update_from_states

CAMPAIGN = """
name = "captured"
[models.mlp]
name = "leakscope:mlp?hidden=32"
image_size = 8
num_classes = 10
[images.theirs]
from = ["bundled:PHOTOGRAPH"]
[clients.round-1]
type = "fedavg"
steps = 1
batch_size = 1
lr = 0.1
update = "captured/1"
[attacks.form]
type = "linear-layer"
[[targets]]
models = ["mlp"]
images = ["theirs"]
clients = ["round-1"]
[controls]
self_tests = false
identifiability = false
prior_only = false
"""


@pytest.fixture
def captured(tmp_path):
    """One step of plain torch training, as anybody's client would do it, on the cat."""
    model = ls.load_model("leakscope:mlp?hidden=32", image_size=8, num_classes=10, seed=0)
    batch = ls.bundled_batch(["cat"], size=8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.module.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(model(batch.images), batch.labels % 10).backward()
    optimiser.step()
    save_update(update_from_states(before, model.state_dict()), tmp_path / "captured" / "1")
    return tmp_path


def audit(base: Path, photograph: str):
    campaign = parse_campaign(CAMPAIGN.replace("PHOTOGRAPH", photograph))
    out = base / f"out-{photograph}"
    manifest = begin(campaign, cells_of(campaign, base), out)
    run_campaign(manifest, out, InProcess(out, base))
    (record,) = [manifest.record(out, cell) for cell in manifest.cells]
    return record, judge(out, base=base)


def test_a_captured_update_is_attacked(captured):
    record, findings = audit(captured, "cat")
    assert record.status == "finished", record.message
    assert min(record.metric("psnr")) > 60
    assert findings.findings[0].level == "exact"


def test_images_that_do_not_replay_to_it_are_never_called_safe(captured):
    record, findings = audit(captured, "coffee")
    assert record.status == "failed"
    assert "does not hold together" in record.message
    assert findings.findings[0].level == "unknown"


def test_another_capture_is_another_cell(captured):
    campaign = parse_campaign(CAMPAIGN.replace("PHOTOGRAPH", "cat"))
    (first,) = cells_of(campaign, captured)
    manifest = next((captured / "captured" / "1").glob("*.json"))
    manifest.write_text(manifest.read_text() + " ")
    (second,) = cells_of(campaign, captured)
    assert first.key != second.key
