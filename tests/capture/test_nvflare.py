"""NVFlare's own simulator with two clients: what its filter captures replays to the last bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import leakscope as ls
from leakscope.capture import check, load_update
from leakscope.errors import MissingExtra

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    pytest.importorskip("nvflare", reason="NVFlare is not installed (pip install 'leakscope[nvflare]')")
    out = tmp_path_factory.mktemp("nvflare")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        [sys.executable, "job.py", str(out)], cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=280
    )
    assert (out / "captures").exists(), ran.stdout[-2000:] + ran.stderr[-2000:]
    return out / "captures"


def audited():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("nvflare_example_net", EXAMPLE / "net.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.audited()


@pytest.mark.parametrize(("site", "names"), [("site-1", ["cat", "coffee"]), ("site-2", ["temple", "raccoon"])])
@pytest.mark.parametrize("number", [0, 1])
def test_every_round_of_every_client_replays(captures, site, names, number):
    update = load_update(captures / f"round-{number:04d}" / f"client-{site}")
    assert (update.kind, update.round, update.client) == ("weights", number, site)
    assert update.fact("steps") == 1
    client = ls.FedAvg(steps=1, optimiser=ls.Sgd(lr=0.05), mode="train", share_buffers=True)
    report = check(update, audited(), batch=ls.bundled_batch(names, size=16), client=client)
    assert report.ok, report.problems
    assert report.replay is not None
    assert report.replay.error < 1e-5
    moved = [name for name, value in update.sent.items() if not torch.equal(value, update.received[name])]
    assert "1.running_mean" in moved


def test_without_nvflare_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvflare", None)
    monkeypatch.setitem(sys.modules, "nvflare.apis.filter", None)
    monkeypatch.delitem(sys.modules, "leakscope.capture.nvflare", raising=False)
    with pytest.raises(MissingExtra, match=r"leakscope\[nvflare\]"):
        import leakscope.capture.nvflare  # noqa: F401
