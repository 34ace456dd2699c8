"""Copies of the checkout, so that a mutant is seen by nobody but its own run."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutations import Mutant
from tests.mutants.scope import ROOT

#: What one run of tests or of the simulator may take of memory; a mutant may fill all there is.
MEMORY_BYTES_MAX = 8 << 30


@dataclass(frozen=True, slots=True)
class Ended:
    """What a process gave; status None: it took too long and was killed."""

    status: int | None
    output: str


class Tree:
    """A copy of package and tests in a folder of its own, with what Python compiles of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Times of change that no file had: what is compiled is known by time and size.
        self._times = itertools.count(1_000_000_000)
        for name in ("sluice", "tests", "docs", "scripts"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "Makefile", "CHANGELOG.md", "setup.py"):
            shutil.copy2(ROOT / name, folder / name)
        for name in (".venv", ".local"):
            if (ROOT / name).exists():
                (folder / name).symlink_to((ROOT / name).resolve())

    def breaks(self, mutant: Mutant, source: bytes) -> None:
        """Put a mutant there."""
        self._write(mutant, mutant.of(source))

    def mend(self, mutant: Mutant, source: bytes) -> None:
        """Take it away again."""
        self._write(mutant, source)

    def python(self, arguments: list[str], seconds: float, **variables: str) -> Ended:
        """Run Python in this tree; ends with all of its children."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        try:
            output, _ = process.communicate(timeout=seconds)
            return Ended(process.returncode, output)
        except subprocess.TimeoutExpired:
            return Ended(None, "")
        finally:
            _end_group(process)

    def _write(self, mutant: Mutant, text: bytes) -> None:
        path, at = self.folder / "sluice" / mutant.path, next(self._times)
        path.write_bytes(text)
        os.utime(path, (at, at))


def _end_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
