"""Server processes on this machine: free ports, readiness, signals by process id."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sluice.core.errors import TerminalError
from sluice.testbed.local.lifetime import dying_with_parent

START_TIMEOUT_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LOG_CHARACTERS = 3000
#: Below 32768, where Linux begins by default with the ports of outgoing connections.
_PORTS = (10_240, 32_768)
#: Drawn by the system, since processes that a test seeds alike would else draw the same ports.
_DRAWN = random.SystemRandom()
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Distinct ports on loopback that nobody listens on at this moment, and that no call of this
    process gave before.

    They lie below the ports that the system gives to outgoing connections: a server that is
    stopped and started again would else find its port taken by somebody's connection [measured:
    ClickHouse ended with "Address already in use" after a kill, in a full test run].
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _DRAWN.randrange(*_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                ports.append(port)
    return ports


def wait_until(
    ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    timeout_seconds: float = START_TIMEOUT_SECONDS,
) -> None:
    """Wait for readiness.

    :raises TerminalError: the process ended or hangs; with the tail of its log.
    """
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            what = f"ended with status {ended}" if ended is not None else "is not ready"
            tail = log.read_text(errors="replace")[-_LOG_CHARACTERS:] if log.exists() else ""
            raise TerminalError(f"{process.args!r} {what}:\n{tail}", f"Read {log}.")
        time.sleep(_LOOK_SECONDS)


def end_process(process: subprocess.Popen[Any], timeout_seconds: float = 20.0) -> None:
    """SIGTERM, then SIGKILL; wakes a process that was stopped by SIGSTOP first."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
    process.terminate()
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Child:
    """A server process that can be killed, paused and started again. Its data and its ports stay.

    It ends with the thread that started it.

    :param folder: for its data and its logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The process; only between `start` and `stop`."""
        assert self.process is not None, "the server is not running"
        return self.process

    def launch(self, command: Sequence[str]) -> None:
        """Start the process, its output in the folder."""
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                dying_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                # Ctrl-C in a terminal is for whoever started it, who then ends it in order.
                start_new_session=True,
            )
        self.process.args = list(command)  # for messages

    def stop(self) -> None:
        """End the process in order; harmless when it has ended."""
        if self.process is not None:
            end_process(self.process)
            self.process = None

    @property
    def pid(self) -> int:
        """The id of that process."""
        return self.running.pid

    @property
    def serving_pid(self) -> int:
        """The same: it has no keeper."""
        return self.pid

    def kill(self) -> None:
        """SIGKILL; harmless when it has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, and nothing answers."""
        self.running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.running.send_signal(signal.SIGCONT)
