"""Processes of this package's own modules, beside the one that needs them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import sluice


def own_process(module: str, *words: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs a module of this package, and its environment."""
    package = str(Path(sluice.__file__).parent.parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return [sys.executable, "-m", module, *words], {**os.environ, "PYTHONPATH": path}
