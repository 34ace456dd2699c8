"""A real ZooKeeper (Debian's package) on a free port, for Replicated tables."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

from sluice.core.errors import TerminalError
from sluice.spark.java import require_java
from sluice.testbed.local.children import Child, free_ports

ENVIRONMENT = Path("/etc/zookeeper/conf/environment")
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
INSTALL = "Debian: apt-get install zookeeper"


def zookeeper_available() -> bool:
    """Whether Debian's zookeeper package is installed."""
    return ENVIRONMENT.exists()


class ZooKeeper(Child):
    """One ZooKeeper server.

    :param port: on 127.0.0.1; None for any free one.
    """

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder)
        self.port = port or free_ports(1)[0]

    def start(self) -> None:
        """Start, and return when it serves.

        :raises TerminalError: it is not installed, or does not come up.
        """
        if not zookeeper_available():
            raise TerminalError("ZooKeeper is not installed", INSTALL)
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "zoo.cfg"
        configuration.write_text(
            f"tickTime=500\ndataDir={self.folder}/data\n"
            f"clientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=60000\n"
        )
        java = str(require_java())
        options = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        self.launch([java, *options, "-cp", class_path(), MAIN_CLASS, str(configuration)])
        self.wait_until(lambda: _answers(self.port))


def class_path() -> str:
    """CLASSPATH as the package's environment file sets it."""
    for line in ENVIRONMENT.read_text().splitlines():
        if line.startswith("CLASSPATH="):
            return shlex.split(line.removeprefix("CLASSPATH="))[0]
    raise TerminalError(f"{ENVIRONMENT} has no CLASSPATH", INSTALL)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            # It answers "ruok" before it serves; "srvr" names its mode once it does.
            return b"Mode:" in _read_all(connection)
    except OSError:
        return False


def _read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(4096):
        parts.append(part)
    return b"".join(parts)
