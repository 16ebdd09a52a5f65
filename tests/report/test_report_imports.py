"""Reports are made where no torch is installed."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib.util import find_spec

SCRIPT = """
import importlib, sys, types

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "timm"):
            raise ImportError(f"{name} must not be imported by a report")

sys.meta_path.insert(0, Refuse())
package = types.ModuleType("leakscope")  # the real one imports everything
package.__path__ = [sys.argv[1]]
sys.modules["leakscope"] = package
for name in sys.argv[2:]:
    importlib.import_module(name)
assert "matplotlib.pyplot" not in sys.modules, "pyplot keeps global state"
"""


def test_every_module_of_the_report_runs_without_torch() -> None:
    package, report = find_spec("leakscope"), find_spec("leakscope.report")
    assert package is not None
    assert report is not None
    assert package.submodule_search_locations
    assert report.submodule_search_locations
    modules = [m.name for m in pkgutil.walk_packages(report.submodule_search_locations, "leakscope.report.")]
    assert "leakscope.report.pictures" in modules
    arguments = [package.submodule_search_locations[0], "leakscope.report", *modules]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
