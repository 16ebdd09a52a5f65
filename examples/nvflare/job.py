"""A real NVFlare federation on this machine, captured: two clients, two rounds, NVFlare's own simulator.

    pip install 'leakscope[nvflare]'
    cd examples/nvflare && python job.py ../../out/nvflare
    leakscope check ../../out/nvflare/captures/round-0000/client-site-1 --model net.py:audited \
        --batch bundled:cat,coffee --labels 1,2 --mode train --local-steps 1 --local-lr 0.05
"""

import sys
from pathlib import Path

import torch
from net import Net
from nvflare.app_opt.pt.job_config.fed_avg import FedAvgJob
from nvflare.job_config.api import FilterType
from nvflare.job_config.script_runner import ScriptRunner

from leakscope.capture.nvflare import CaptureFilter


def main(out: Path) -> None:
    torch.manual_seed(0)
    job = FedAvgJob(name="captured", n_clients=2, num_rounds=2, initial_model=Net())
    for site in ("site-1", "site-2"):
        job.to(ScriptRunner(script="client.py"), site)
        job.to("net.py", site)
        for direction in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
            job.to(CaptureFilter(str(out / "captures")), site, tasks=["train"], filter_type=direction)
    job.simulator_run(str(out / "workspace"), threads=2)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out").resolve())
