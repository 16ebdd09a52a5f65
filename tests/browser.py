"""A real Chromium for the tests of pages; they are skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from leakscope.report.pdf import find_browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 120_000
"""Milliseconds: a loaded machine is slow, not wrong."""


@dataclass
class Visit:
    """A page, and everything that went wrong on it: errors, dialogs, and requests to anywhere but ``home``."""

    page: Any
    home: tuple[str, ...]
    problems: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium, Chrome or Edge was found")
    with playwright.sync_playwright() as started:
        try:
            browser = started.chromium.launch(executable_path=str(path), args=FLAGS, timeout=PATIENCE)
        except playwright.Error as error:
            pytest.skip(f"{path} does not start here: {str(error).strip().splitlines()[0]}")
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Any, url: str, *, home: tuple[str, ...] = ("file:", "data:"), **options: Any) -> Iterator[Visit]:
    """Open ``url`` in a window of its own; ``options`` are those of a playwright page (viewport, color_scheme, …)."""
    page = browser.new_page(reduced_motion="reduce", **options)  # nothing glides away under the mouse
    page.set_default_timeout(PATIENCE)
    seen = Visit(page=page, home=home)
    page.on("console", lambda m: seen.problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.problems.append(str(error)))
    page.on("dialog", lambda dialog: (seen.problems.append("a dialog opened"), dialog.dismiss()))
    page.on("request", lambda r: None if r.url.startswith(home) else seen.problems.append(f"request to {r.url}"))
    try:
        page.goto(url)
        yield seen
    finally:
        page.close()
