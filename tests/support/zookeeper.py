"""A real ZooKeeper (Debian's package) on a free port, for Replicated tables in tests."""

from __future__ import annotations

import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import end_process, free_ports, wait_until

ENVIRONMENT = Path("/etc/zookeeper/conf/environment")
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"


def zookeeper_available() -> bool:
    """Whether Debian's zookeeper package is installed."""
    return ENVIRONMENT.exists()


@contextmanager
def run_zookeeper() -> Iterator[int]:
    """Run ZooKeeper until the block ends; gives its port on 127.0.0.1."""
    port = free_ports(1)[0]
    with tempfile.TemporaryDirectory(prefix="sluice-zookeeper-") as folder:
        process, log = _start(Path(folder), port)
        try:
            wait_until(lambda: _answers(port), process, log)
            yield port
        finally:
            end_process(process)


def _start(folder: Path, port: int) -> tuple[subprocess.Popen[bytes], Path]:
    configuration = folder / "zoo.cfg"
    configuration.write_text(
        f"tickTime=500\ndataDir={folder}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
        "minSessionTimeout=1000\nmaxSessionTimeout=60000\n"
    )
    log = folder / "zookeeper.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["java", "-Xmx256m", "-cp", _class_path(), MAIN_CLASS, str(configuration)],
            stdout=output,
            stderr=output,
            cwd=folder,
        )
    return process, log


def _class_path() -> str:
    """CLASSPATH as the package's environment file sets it."""
    for line in ENVIRONMENT.read_text().splitlines():
        if line.startswith("CLASSPATH="):
            return shlex.split(line.removeprefix("CLASSPATH="))[0]
    raise RuntimeError(f"{ENVIRONMENT} has no CLASSPATH")


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
