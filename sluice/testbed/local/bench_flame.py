"""A flame graph of one worker, by py-spy where it is installed. Sluice does not depend on it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.core.errors import ConfigurationError

_SAMPLES_PER_SECOND = 100
#: A recorder that ends by itself does so at once: it may not trace, or knows no native frames.
_START_SECONDS = 3.0
#: Symbols of the engine are read before the graph is written.
_WRITE_SECONDS_MAX = 120.0


def find_py_spy() -> str:
    """The program.

    :raises ConfigurationError: it is not installed.
    """
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("py-spy")
    if found is None:
        raise ConfigurationError(
            "--flame needs py-spy, which is not installed", "pip install py-spy"
        )
    return found


@dataclass(slots=True)
class Flame:
    """What became of a recording.

    :param failure: the recorder's last words, if there is no graph.
    """

    file: Path
    native: bool = False
    failure: str = ""

    @property
    def line(self) -> str:
        """For a person."""
        if self.failure:
            return f"no flame graph: py-spy says {self.failure!r}"
        frames = "native frames" if self.native else "Python frames only"
        return f"flame graph of one worker, {frames}: {self.file}"


@contextmanager
def recorded(py_spy: str, pid: int, flame: Flame) -> Iterator[None]:
    """Record a process while the context lasts; the graph is there when it has ended.

    With native frames if py-spy can; else without. A recorder that fails spoils no benchmark:
    what it said is in `flame` afterwards.
    """
    file = flame.file
    with tempfile.TemporaryFile("w+") as words:
        recorder = _start(py_spy, pid, file, words.fileno(), native=True)
        flame.native = recorder.poll() is None
        if not flame.native:
            recorder = _start(py_spy, pid, file, words.fileno(), native=False)
        try:
            yield
            if recorder.poll() is None:
                recorder.send_signal(signal.SIGINT)  # it writes what it has
            recorder.wait(_WRITE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            flame.failure = f"nothing for {_WRITE_SECONDS_MAX:.0f} s"
        finally:
            if recorder.poll() is None:
                recorder.kill()
                recorder.wait()
        if recorder.returncode != 0 and not flame.failure:
            words.seek(0)
            said = [line.strip() for line in words if line.strip()]
            flame.failure = said[-1] if said else f"nothing; its status is {recorder.returncode}"


def _start(
    py_spy: str, pid: int, file: Path, words: int, *, native: bool
) -> subprocess.Popen[bytes]:
    """A recorder that has run for a moment, or has ended."""
    command = [py_spy, "record", "--pid", str(pid), "--output", str(file)]
    command += ["--rate", str(_SAMPLES_PER_SECOND), *(["--native"] if native else [])]
    recorder = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=words,
        stderr=words,
        start_new_session=True,  # Ctrl-C reaches this process, which ends the recorder
    )
    deadline = time.monotonic() + _START_SECONDS
    while recorder.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return recorder
