"""The local stack as context managers, for demo, bench and tests.

    with running_broker(folder / "kafka") as broker, running_clickhouse(folder / "ch") as server:
        ...  # broker.brokers, server.url

Each program is a process of its own that ends with its context, and also when the process that
started it dies.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from sluice.core.errors import TerminalError
from sluice.testbed.local.children import Child
from sluice.testbed.local.lifetime import PARENT_VARIABLE


class Program(Child):
    """A program of the local stack and its process, which ends with the process that started it.

    :param folder: kept over restarts, as its port is.
    """

    #: What `sluice local` calls it.
    name = ""
    #: The key of the ready line that carries the address.
    key = ""
    stop_seconds_max = 45.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        #: A free one, from the first start on.
        self.port = 0
        self.address = ""

    @property
    def environment(self) -> dict[str, str]:
        """What its process gets besides this one's environment."""
        return {}

    def start(self, timeout_seconds: float = 240.0) -> None:
        """Start, and return when the program answers.

        :param timeout_seconds: room for a first start, which may fetch Kafka.
        :raises TerminalError: it ended, or stayed silent; its own words are on stderr.
        """
        command = [sys.executable, "-m", "sluice", "local", self.name, "--data", str(self.folder)]
        if self.port:
            command += ["--port", str(self.port)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **self.environment, PARENT_VARIABLE: str(os.getpid())},
        )
        line = _first_line(self._process, timeout_seconds)
        if not line:
            self.kill()
            raise TerminalError(
                f"{self.name} did not start on {self.folder}", "Read its message above."
            )
        self.address = json.loads(line)[self.key]
        self.port = int(self.address.rpartition(":")[2])

    def restart(self) -> None:
        """Start again on the same folder and port; stops it first if it runs."""
        self.stop()
        self.start()


_Program = TypeVar("_Program", bound=Program)


class Broker(Program):
    """A running Kafka broker. `pid` is its keeper's: the JVM ends with the keeper."""

    name, key = "kafka", "brokers"

    @property
    def brokers(self) -> str:
        """bootstrap.servers"""
        return self.address

    @property
    def serving_pid(self) -> int:
        """The broker's own process, e.g. to measure its CPU time."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[0])


class ClickHouse(Program):
    """A running embedded ClickHouse.

    `zone` is its time zone from its next start on; "" leaves it to this machine.
    """

    name, key = "clickhouse", "url"
    zone = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"TZ": self.zone} if self.zone else {}

    @property
    def url(self) -> str:
        """Its HTTP address, http://127.0.0.1:PORT."""
        return self.address


def running_broker(data: Path) -> AbstractContextManager[Broker]:
    """A broker on `data`, stopped at the end.

    :raises TerminalError: it did not start.
    """
    return running_program(Broker(data))


def running_clickhouse(data: Path) -> AbstractContextManager[ClickHouse]:
    """An embedded ClickHouse on `data`, stopped at the end.

    :raises TerminalError: it did not start.
    """
    return running_program(ClickHouse(data))


@contextmanager
def running_program(program: _Program) -> Iterator[_Program]:
    """A program until the block ends."""
    try:
        program.start()
        yield program
    finally:
        program.stop()


def _first_line(process: subprocess.Popen[bytes], timeout_seconds: float) -> bytes:
    """The ready line, "" if the process ends or the time runs out before it comes."""
    assert process.stdout is not None
    deadline_seconds = time.monotonic() + timeout_seconds
    while (left_seconds := deadline_seconds - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], min(left_seconds, 0.5))[0]:
            return process.stdout.readline()
    return b""
