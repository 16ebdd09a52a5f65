"""Imports go one way. This walks the source, not the running program, so a wrong arrow cannot hide in a branch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import leakscope

ROOT = Path(leakscope.__file__).parent
BASE = {"types", "errors", "random", "registry", "functional", "bibliography", "plain", "_torchvision_ops"}
MAY = {
    "functional": BASE,
    "models": BASE | {"models"},
    "client": BASE | {"models", "client"},
    "attacks": BASE | {"models", "client", "attacks"},
    "metrics": BASE | {"metrics", "testing.bundled"},
    "testing": BASE | {"models", "client", "attacks", "testing"},
    "audit": BASE | {"models", "client", "capture", "attacks", "metrics", "testing", "audit"},
    "capture": BASE | {"models", "client", "capture"},
    "lint": BASE | {"models", "lint"},
    "gate": BASE | {"models", "client", "attacks", "metrics", "capture", "gate"},
    "report": {"errors", "bibliography", "report"}
    | {f"audit.{name}" for name in ("campaign", "cell", "findings", "findings_file", "record", "tuned")},
    "types": {"errors", "functional.boxes"},
    "random": set(),
    "registry": {"errors"},
    "plain": set(),
    "errors": set(),
}


def imports(path: Path) -> set[str]:
    """Names of leakscope modules imported anywhere in a file, except for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "leakscope":
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "leakscope"}
    return found


def files(room: str) -> list[Path]:
    folder = ROOT / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{room}.py"]


@pytest.mark.parametrize("room", MAY)
def test_arrows(room):
    allowed = {f"leakscope.{name}" for name in MAY[room]}
    for path in files(room):
        for name in imports(path):
            reached = any(name == a or name.startswith(a + ".") for a in allowed)
            assert reached, f"{path.relative_to(ROOT)} imports {name}: {room} may only reach {sorted(MAY[room])}"


def test_no_relative_imports():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"relative import in {path}"


def test_the_walk_sees_imports():
    assert any("leakscope.models" in name for name in imports(ROOT / "client" / "observe.py"))


def test_reading_a_report_does_not_load_torch():
    rooms = "leakscope.report.pictures, leakscope.report.html, leakscope.report.serve"
    code = f"import sys, leakscope, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
