"""Which papers stand behind the methods that a campaign used.

Registries know what each attack, defence, model and metric cites, but they import torch. The decorators that fill them
are read here as text instead: ``@register_attack("dlg", cites="zhu2019")``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from leakscope.audit.cell import Cell
from leakscope.bibliography import BIBLIOGRAPHY, Paper

__all__ = ["cited", "papers_of"]

# The room, and the decorator that enters a name there.
_DECORATORS: Final = {
    "attacks": "register_attack",
    "client": "register_defence",
    "models": "model",
    "metrics": "metric",
}


def papers_of(cells: Iterable[Cell], metrics: Iterable[str] = ()) -> list[Paper]:
    """The papers behind the attacks, defences and models of ``cells`` and behind ``metrics``, each once, by key."""
    keys: set[str | None] = {cited("metrics", name) for name in metrics}
    for cell in cells:
        keys.add(cited("attacks", cell.attack))
        keys.update(cited("client", str(step.get("type", ""))) for step in cell.defences)
        source, _, name = str(cell.model.get("name", "")).partition(":")
        if source == "leakscope":
            keys.add(cited("models", name.partition("?")[0]))
    return [BIBLIOGRAPHY[key] for key in sorted(key for key in keys if key is not None) if key in BIBLIOGRAPHY]


def cited(room: str, name: str) -> str | None:
    """The key that the registry of ``room`` cites for ``name``."""
    return _citations(room).get(name)


@cache
def _citations(room: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted((Path(__file__).parents[1] / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == _DECORATORS[room] and node.args:
                cites = next((word.value for word in node.keywords if word.arg == "cites"), None)
                name = node.args[0]
                if isinstance(cites, ast.Constant) and isinstance(name, ast.Constant):
                    found[str(name.value)] = str(cites.value)
    return found
