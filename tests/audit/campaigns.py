"""A small campaign for tests of the runner: some two dozen cells of every role, a fraction of a second each."""

import hashlib
import json
from pathlib import Path

from leakscope.audit.campaign_file import parse_campaign
from leakscope.audit.cell import CELLS
from leakscope.audit.plan import cells_of
from leakscope.audit.runner import begin

SMALL = """
name = "small"
[models.mlp]
name = "leakscope:mlp?hidden=32"
image_size = 8
[models.lenet]
name = "leakscope:lenet-dlg"
image_size = 8
[images.photos]
from = ["bundled:cat,coffee,astronaut"]
batch_size = 1
[clients.sgd]
type = "fedsgd"
[attacks.linear]
type = "linear-layer"
[attacks.matching]
type = "inverting-gradients"
steps = 12
[attacks.tagging]
type = "tag"
steps = 8
[[targets]]
models = ["mlp", "lenet"]
images = ["photos"]
clients = ["sgd"]
[controls]
self_tests = false
identifiability = false
"""

VOLATILE = ("created", "seconds")
"""What may differ between two runs of one cell."""


def planned(out: Path, text: str = SMALL):
    campaign = parse_campaign(text)
    return begin(campaign, cells_of(campaign, Path()), out)


def content(out: Path) -> dict[str, object]:
    """Every file of every cell, bit for bit, but for the times in its record; checkpoints are no results."""
    found: dict[str, object] = {}
    for folder in sorted((out / CELLS).iterdir()):
        for path in sorted(folder.iterdir()):
            if path.name == "record.json":
                record = json.loads(path.read_text())
                for key in VOLATILE:
                    record.pop(key)
                found[f"{folder.name}/{path.name}"] = record
            elif path.is_file() and path.name != ".lock":
                found[f"{folder.name}/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
