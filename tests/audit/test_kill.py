"""A campaign killed at ten random moments and resumed ends with exactly the records of an unbroken run."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from campaigns import content, planned

from leakscope.audit.cell import CELLS
from leakscope.audit.executors import InProcess
from leakscope.audit.runner import run_campaign

SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from leakscope.audit.cell import read_manifest
from leakscope.audit.executors import InProcess
from leakscope.audit.runner import run_campaign
out = Path(sys.argv[1])
run_campaign(read_manifest(out), out, InProcess(out, Path(), every=0))
print("ended")
"""
KILLS = 10


def files(out):
    """Everything that has been written so far, checkpoints included: it changes with every step."""
    found = set()
    for path in (out / CELLS).rglob("*"):
        try:
            found.add((str(path), path.stat().st_mtime_ns))
        except FileNotFoundError:  # a part that has just taken its place
            continue
    return found


def start(out):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)], stdout=subprocess.PIPE)


def test_killed_at_ten_random_moments_and_resumed(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_campaign(planned(whole), whole, InProcess(whole, Path()))
    planned(broken)
    (broken / CELLS).mkdir()
    draw = random.Random(0)
    killed = 0
    for _ in range(KILLS):
        before = files(broken)
        seen = set(before)
        process = start(broken)
        # The moment is counted in things written, not in seconds, so that it falls into the work on any machine.
        wanted = draw.randint(1, 25)
        while process.poll() is None and len(seen - before) < wanted:
            seen |= files(broken)
            time.sleep(0.002)
        time.sleep(draw.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed >= 5, "the campaign was over too early for this test to mean anything"
    last = start(broken)
    assert b"ended" in last.communicate(timeout=240)[0]
    assert content(broken) == content(whole)
