"""A real browser, for one question at a time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

#: A page that does not come within so many seconds of the machine's time is broken.
SECONDS = 180


def chromium(folder: Path, *words: str) -> str:
    """What Chromium prints; it is told to ask nobody but the page's server."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("needs Debian's package chromium: scripts/setup-tests")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    options = ("--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={folder}")
    ended = subprocess.run(
        [found, *options, *words], capture_output=True, timeout=SECONDS, check=True
    )
    return ended.stdout.decode()
