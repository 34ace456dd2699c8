"""A real server of Redis (Debian's package) on a free port."""

from __future__ import annotations

import shutil
from pathlib import Path

from sluice.claims.connection import Connection, Endpoint, Reply
from sluice.claims.port import StoreAwayError, StoreRefusedError
from sluice.core.errors import TerminalError
from sluice.testbed.local.children import Child, free_ports

INSTALL = "Debian: apt-get install redis-server"


class RedisServer(Child):
    """One server, loopback only; what it keeps on disk stays when it is started again.

    :param settings: lines of redis.conf.
    """

    def __init__(self, folder: Path, *settings: str, password: str = "") -> None:
        super().__init__(folder)
        (self.port,) = free_ports(1)
        self.password = password
        self._settings = settings

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> None:
        """Start it and wait until it answers."""
        if shutil.which("redis-server") is None:
            raise TerminalError("redis-server is not installed", INSTALL)
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", "save ''"]
        if self.password:
            lines.append(f"requirepass {self.password}")
        configuration = self.folder / "redis.conf"
        configuration.write_text("\n".join([*lines, *self._settings, ""]))
        self.launch(["redis-server", str(configuration), *options])
        self.wait_until(self._answers)

    def ask(self, *words: str) -> Reply:
        """One command."""
        connection = Connection(Endpoint("127.0.0.1", self.port, password=self.password))
        try:
            return connection.call(*(word.encode() for word in words))
        finally:
            connection.close()

    def _answers(self) -> bool:
        try:
            return self.ask("PING") == b"PONG"
        except (StoreAwayError, StoreRefusedError):
            return False
