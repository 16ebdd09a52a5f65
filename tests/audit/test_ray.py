"""The same campaign on a Ray cluster of this machine: the same records, and a killed worker loses nothing."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from campaigns import SMALL, content, planned

from leakscope.audit.executors import InProcess
from leakscope.audit.ray_executor import RayExecutor
from leakscope.audit.runner import run_campaign

ray = pytest.importorskip("ray", reason="Ray is not installed: leakscope[ray]")


@pytest.fixture(scope="module")
def cluster():
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        pytest.skip(f"no Ray cluster can be started here: {error}")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    run_campaign(planned(out), out, InProcess(out, Path()))
    return content(out)


@pytest.mark.timeout(600)
def test_ray_gives_the_same_records(cluster, whole, tmp_path):
    run_campaign(planned(tmp_path), tmp_path, RayExecutor(tmp_path, Path()))
    assert content(tmp_path) == whole


def _workers():
    """The processes of this cluster that run a cell now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if b"ray::_run_there" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


LONG = SMALL.replace("steps = 12", "steps = 150").replace("cat,coffee,astronaut", "cat")
"""Cells of seconds, so that one can be caught at work."""


@pytest.mark.timeout(600)
def test_a_worker_killed_in_the_middle_loses_nothing(cluster, tmp_path_factory):
    whole, tmp_path = tmp_path_factory.mktemp("long"), tmp_path_factory.mktemp("broken")
    run_campaign(planned(whole, LONG), whole, InProcess(whole, Path()))
    killed = []

    def kill():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not killed:
            for pid in _workers():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return
            time.sleep(0.005)

    thread = threading.Thread(target=kill)
    thread.start()
    state = run_campaign(planned(tmp_path, LONG), tmp_path, RayExecutor(tmp_path, Path()))
    thread.join()
    assert killed, "no worker was caught at work"
    assert len(state.ended) == state.total
    assert content(tmp_path) == content(whole)


def test_files_travel_with_the_cell(cluster, tmp_path):
    from torchvision.utils import save_image

    from leakscope.testing.bundled import bundled_images

    base = tmp_path / "base"
    photos = tmp_path / "photos"
    base.mkdir()
    photos.mkdir()
    save_image(bundled_images(["cat"], 8)[0], photos / "cat.png")
    text = SMALL.replace('"bundled:cat,coffee,astronaut"', '"../photos"').replace('"mlp", "lenet"', '"mlp"')
    from leakscope.audit.campaign_file import parse_campaign
    from leakscope.audit.plan import cells_of
    from leakscope.audit.runner import begin

    campaign = parse_campaign(text)
    out = tmp_path / "out"
    manifest = begin(campaign, cells_of(campaign, base), out)
    run_campaign(manifest, out, RayExecutor(out, base))
    statuses = {manifest.record(out, cell).status for cell in manifest.cells}
    assert "failed" not in statuses
    assert "finished" in statuses
