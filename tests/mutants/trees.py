"""Copies of the checkout, so that a mutant is seen by nobody but its own run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import select
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
        self._forker: subprocess.Popen[str] | None = None

    def breaks(self, mutant: Mutant, source: bytes) -> None:
        """Put a mutant there."""
        self._write(mutant, mutant.of(source))

    def fix(self, mutant: Mutant, source: bytes) -> None:
        """Take it away again."""
        self._write(mutant, source)

    def python(self, module: str, arguments: list[str], seconds: float, **variables: str) -> Ended:
        """Run a module of Python in this tree; ends with all of its children."""
        forker = self._forking()
        assert forker.stdin is not None and forker.stdout is not None
        output = self.folder / "output"
        request = {
            "module": module,
            "arguments": arguments,
            "output": str(output),
            "variables": variables,
        }
        forker.stdin.write(json.dumps(request) + "\n")
        forker.stdin.flush()
        pid = int(forker.stdout.readline())
        ready, _, _ = select.select([forker.stdout], [], [], seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        status = int(forker.stdout.readline())
        text = output.read_text(errors="replace") if output.exists() else ""
        return Ended(status if ready else None, text)

    def close(self) -> None:
        """End what runs."""
        if self._forker is not None:
            self._forker.kill()
            self._forker.wait()

    def _forking(self) -> subprocess.Popen[str]:
        if self._forker is None:
            environment = {**os.environ, "PYTHONPATH": str(self.folder)}
            self._forker = subprocess.Popen(
                [sys.executable, "-m", "tests.mutants.forking"],
                cwd=self.folder,
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            limits = (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX)
            resource.prlimit(self._forker.pid, resource.RLIMIT_DATA, limits)
        return self._forker

    def _write(self, mutant: Mutant, text: bytes) -> None:
        path, at = self.folder / "sluice" / mutant.path, next(self._times)
        path.write_bytes(text)
        os.utime(path, (at, at))
