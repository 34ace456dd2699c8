"""Server processes on this machine: free ports, readiness, signals by process id."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
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


def start_process(
    command: Sequence[str],
    log: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that ends with the thread that calls this.

    :param log: gets its output, behind what is there.
    :param folder: that it works in; None for this process's.
    :param environment: what it gets besides this process's.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            dying_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            # Ctrl-C in a terminal is for whoever started it, who then ends it in order.
            start_new_session=True,
        )
    process.args = list(command)  # for messages
    return process


class Child:
    """A server process that can be killed, paused and started again. Its data and its ports stay.

    :param folder: for its data and its logs.
    """

    #: How long it may take to end in order.
    stop_seconds_max = 20.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._process is not None, "it was never started"
        return self._process

    @property
    def pid(self) -> int:
        """The id of that process."""
        return self.process.pid

    @property
    def serving_pid(self) -> int:
        """The id of the process that serves."""
        return self.pid

    def launch(
        self,
        command: Sequence[str],
        log: str = "output.log",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process in its folder; it ends with the thread that calls this.

        :param log: the file for its output.
        :param environment: what it gets besides this process's.
        """
        self._process = start_process(
            command, self.folder / log, folder=self.folder, environment=environment
        )

    def wait_until(
        self,
        ready: Callable[[], bool],
        log: str = "output.log",
        timeout_seconds: float = START_TIMEOUT_SECONDS,
    ) -> None:
        """Wait for readiness.

        :param log: the file that says why it is not ready.
        :raises TerminalError: the process ended or hangs; with the tail of its log.
        """
        path = self.folder / log
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            ended = self.process.poll()
            if ended is not None or time.monotonic() > deadline:
                what = f"ended with status {ended}" if ended is not None else "is not ready"
                tail = path.read_text(errors="replace")[-_LOG_CHARACTERS:] if path.exists() else ""
                raise TerminalError(f"{self.process.args!r} {what}:\n{tail}", f"Read {path}.")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> int:
        """End the process in order; its exit status, 0 if none was started. Harmless when it has
        ended already."""
        if self._process is not None:
            end_process(self._process, self.stop_seconds_max)
        return self._ended()

    def kill(self) -> int:
        """SIGKILL; likewise."""
        if self._process is not None:
            self._process.kill()
        return self._ended()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def _ended(self) -> int:
        if self._process is None:
            return 0
        status = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status
