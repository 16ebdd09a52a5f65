"""What the campaign layer adds to an attack: cells of about a minute, beside the same attack called directly.

python benchmarks/campaign.py [--steps 18000] [--pairs 2]

Interleaved runs in one process; CPU seconds, and their ratio. The campaign's share holds everything: planning,
observing, checkpoints every five seconds, scoring, pictures, records, the schedule.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import leakscope as ls
from leakscope.audit.campaign_file import parse_campaign
from leakscope.audit.executors import InProcess
from leakscope.audit.plan import cells_of
from leakscope.audit.runner import begin, run_campaign

CAMPAIGN = """
name = "overhead"
[models.lenet]
name = "leakscope:lenet-dlg"
[images.photograph]
from = ["bundled:cat"]
[clients.sgd]
type = "fedsgd"
[attacks.matching]
type = "inverting-gradients"
steps = STEPS
[[targets]]
models = ["lenet"]
images = ["photograph"]
clients = ["sgd"]
[controls]
prior_only = false
self_tests = false
identifiability = false
"""


def directly(steps: int) -> None:
    model = ls.load_model("leakscope:lenet-dlg", seed=0)
    batch = ls.bundled_batch(["cat"], size=model.input.shape[1])
    seen = ls.observe(model, batch, protocol=ls.FedSGD(), generator=torch.Generator().manual_seed(0))
    found = ls.attack("inverting-gradients", steps=steps)(seen, generator=torch.Generator().manual_seed(1))
    ls.score(found, batch)


def as_campaign(steps: int) -> None:
    with TemporaryDirectory() as folder:
        campaign = parse_campaign(CAMPAIGN.replace("STEPS", str(steps)))
        out = Path(folder)
        run_campaign(begin(campaign, cells_of(campaign, Path()), out), out, InProcess(out, Path()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=18_000)
    parser.add_argument("--pairs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    directly(3)
    as_campaign(3)  # both are warm
    spent = {"directly": 0.0, "as a campaign": 0.0}
    for pair in range(options.pairs):
        order = [("directly", directly), ("as a campaign", as_campaign)]
        for name, run in order if pair % 2 == 0 else reversed(order):
            began = time.process_time()
            run(options.steps)
            seconds = time.process_time() - began
            spent[name] += seconds
            print(f"{name:<14} {seconds:7.2f} s", flush=True)
    print(f"ratio {spent['as a campaign'] / spent['directly']:.4f}")


if __name__ == "__main__":
    main()
