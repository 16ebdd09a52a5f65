"""``findings.json``: findings written and read back, strict JSON, without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from leakscope.audit.findings import (
    FINDINGS,
    Attempt,
    Evidence,
    Finding,
    Findings,
    ImageFinding,
    Level,
    SelfTest,
)
from leakscope.audit.record import plain, render
from leakscope.errors import BadInput

__all__ = ["SCHEMA", "numbers", "read_findings", "write_findings"]

SCHEMA = 1
"""The version of the format; readers refuse a newer one."""


def write_findings(findings: Findings, folder: Path) -> Path:
    """Put ``findings`` into the campaign's ``folder`` in one move; returns the file."""
    from leakscope.audit.store import replacing  # whoever judges has torch loaded; whoever reads needs none of it

    path = folder / FINDINGS
    text = render(plain(findings), "") + "\n"
    try:
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"Cannot write to '{path}': {error.strerror or error}.") from error
    return path


def read_findings(folder: Path) -> Findings:
    """The findings in ``folder``; raises :class:`BadInput` where there are none that can be read."""
    path = folder / FINDINGS
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadInput(f"'{folder}' holds no verdicts yet: there is no {FINDINGS} in it.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"'{path}' cannot be read as findings: {error}.") from error
    if not isinstance(content, dict) or not isinstance(schema := cast("dict[str, Any]", content).get("schema"), int):
        raise BadInput(f"'{path}' holds no findings: it has no schema version.")
    if schema > SCHEMA:
        raise BadInput(f"'{path}' was written in schema {schema}; this version reads up to {SCHEMA}. Update leakscope.")
    try:
        values = dict(cast("dict[str, Any]", content))
        values["findings"] = tuple(_finding(item) for item in values["findings"])
        return Findings(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"'{path}' is damaged: {type(error).__name__} {error}.") from error


def _finding(data: Mapping[str, Any]) -> Finding:
    low, high = data["interval"]
    values: dict[str, Any] = {
        "level": Level(data["level"]),
        "images": tuple(_image(item) for item in data["images"]),
        "leaked": float(data["leaked"]),
        "interval": (float(low), float(high)),
        "evidence": _evidence(data["evidence"]),
    }
    return Finding(**{**data, **values})


def _image(data: Mapping[str, Any]) -> ImageFinding:
    values: dict[str, Any] = {
        name: {key: float(value) for key, value in data[name].items()} for name in ("scores", "control")
    }
    values["level"] = Level(data["level"])
    values["p_value"] = None if data["p_value"] is None else float(data["p_value"])
    return ImageFinding(**{**data, **values})


def _evidence(data: Mapping[str, Any]) -> Evidence:
    return Evidence(
        attempts=tuple(_attempt(item) for item in data["attempts"]),
        self_tests=tuple(SelfTest(**item) for item in data["self_tests"]),
        identifiability=numbers(data["identifiability"]),
        budget=numbers(data["budget"]),
    )


def _attempt(data: Mapping[str, Any]) -> Attempt:
    values: dict[str, Any] = {
        "level": None if data["level"] is None else Level(data["level"]),
        "seconds": float(data["seconds"]),
    }
    return Attempt(**{**data, **values})


def numbers(value: Any) -> Any:
    """The numbers that JSON cannot hold, from the words that stand for them."""
    if isinstance(value, dict):
        return {str(key): numbers(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [numbers(item) for item in cast("list[Any]", value)]
    return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}.get(value, value) if isinstance(value, str) else value
