"""The report on paper: Chromium prints it, as a person would from the browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from leakscope.errors import BadInput

__all__ = ["BROWSER", "find_browser", "print_pdf"]

BROWSER: Final = "LEAKSCOPE_BROWSER"
"""The environment variable that names the browser to use."""
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_FLAGS: Final = (
    "--headless",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little shared memory
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-pdf-header-footer",
)
_SECONDS: Final = 180


def find_browser() -> Path | None:
    """The browser in ``LEAKSCOPE_BROWSER``, else the first of Chromium's family on the path."""
    for name in (os.environ[BROWSER],) if os.environ.get(BROWSER) else _NAMES:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    return None


def print_pdf(page: Path, pdf: Path) -> Path:
    """Print the HTML file ``page`` to ``pdf``; raises :class:`BadInput` where no browser can."""
    browser = find_browser()
    if browser is None:
        raise BadInput(
            "A PDF is printed by a browser, and no Chromium, Chrome or Edge was found. Install one (Debian: apt "
            f"install chromium), name it in {BROWSER}, or open '{page}' in any browser and print it."
        )
    pdf.unlink(missing_ok=True)  # what is there afterwards is what was printed now
    with tempfile.TemporaryDirectory(prefix="leakscope-") as profile:
        command = [str(browser), *_FLAGS, f"--user-data-dir={profile}", f"--print-to-pdf={pdf.resolve()}"]
        # Chromium refuses to run its sandbox as root; the page is our own and may load nothing.
        command += ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
        command.append(page.resolve().as_uri())
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadInput(f"'{browser}' did not print the report: {error}.") from error
    if not pdf.is_file() or not pdf.stat().st_size:
        lines = done.stderr.strip().splitlines()
        raise BadInput(f"'{browser}' did not print the report: {lines[-1] if lines else 'it gave no reason'}.")
    return pdf
