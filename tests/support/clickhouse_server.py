"""A real ClickHouse server (Debian's 18.16.1) on free ports, for tests.

It has no deduplication tokens and deduplicates Replicated tables only: the oldest
server that Sluice serves, where the embedded engine stands for the newest.
"""

from __future__ import annotations

import http.client
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import end_process, free_ports, wait_until

USERS = Path("/etc/clickhouse-server/users.xml")

_CONFIGURATION = """<?xml version="1.0"?>
<yandex>
  <logger><level>warning</level><log>{folder}/server.log</log><errorlog>{folder}/error.log</errorlog></logger>
  <http_port>{http}</http_port><tcp_port>{tcp}</tcp_port>
  <interserver_http_port>{interserver}</interserver_http_port>
  <interserver_http_host>127.0.0.1</interserver_http_host>
  <listen_host>127.0.0.1</listen_host>
  <keep_alive_timeout>{keep_alive_seconds}</keep_alive_timeout>
  <max_concurrent_queries>100</max_concurrent_queries>
  <uncompressed_cache_size>0</uncompressed_cache_size>
  <mark_cache_size>268435456</mark_cache_size>
  <path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path>
  <users_config>users.xml</users_config>
  <default_profile>default</default_profile><default_database>default</default_database>
  <timezone>UTC</timezone>
  <macros><replica>{replica}</replica></macros>
  <remote_servers><default><shard><replica>
    <host>127.0.0.1</host><port>{tcp}</port>
  </replica></shard></default></remote_servers>
  {zookeeper}
</yandex>
"""

_ZOOKEEPER = """<zookeeper>
    <node><host>127.0.0.1</host><port>{port}</port></node>
    <session_timeout_ms>4000</session_timeout_ms>
  </zookeeper>"""

#: Users besides `default` (no password): one with a password, one that may only read.
_USERS = """<sluice><password>right-password</password>
            <networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
        </sluice>
        <reader><password></password>
            <networks><ip>::/0</ip></networks><profile>readonly</profile><quota>default</quota>
        </reader>
    </users>"""


def clickhouse_available() -> bool:
    """Whether Debian's clickhouse-server package is installed."""
    return shutil.which("clickhouse-server") is not None and USERS.exists()


@dataclass
class ClickHouseServer:
    """One server process. `stop` and `start` keep its data and its ports.

    :param url: its HTTP address.
    :param replica: value of the macro {replica}.
    """

    folder: Path
    replica: str = "r1"
    zookeeper_port: int | None = None
    keep_alive_seconds: int = 10
    ports: list[int] = field(default_factory=lambda: free_ports(3))
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """The process; only between `start` and `stop`."""
        assert self.process is not None, "the server is not running"
        return self.process

    def start(self) -> None:
        """Start and wait until /ping answers."""
        http_port, tcp, interserver = self.ports
        zookeeper = "" if self.zookeeper_port is None else _ZOOKEEPER
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.xml").write_text(
            _CONFIGURATION.format(
                folder=self.folder,
                http=http_port,
                tcp=tcp,
                interserver=interserver,
                keep_alive_seconds=self.keep_alive_seconds,
                replica=self.replica,
                zookeeper=zookeeper.format(port=self.zookeeper_port),
            )
        )
        users = USERS.read_text().replace("</users>", _USERS)
        (self.folder / "users.xml").write_text(users)
        with (self.folder / "output.log").open("ab") as output:
            self.process = subprocess.Popen(
                ["clickhouse-server", f"--config-file={self.folder}/config.xml"],
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )
        wait_until(lambda: answers_ping(http_port), self.process, self.folder / "error.log")

    def stop(self) -> None:
        """End the process; the data stays."""
        if self.process is not None:
            end_process(self.process)
            self.process = None

    def kill(self) -> None:
        """SIGKILL; the data stays."""
        self.running.send_signal(signal.SIGKILL)
        self.running.wait()
        self.process = None


def answers_ping(port: int) -> bool:
    """Whether /ping answers on this port of loopback."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def run_clickhouse(
    replica: str = "r1", zookeeper_port: int | None = None, keep_alive_seconds: int = 10
) -> Iterator[ClickHouseServer]:
    """Run a server until the block ends, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="sluice-clickhouse-") as folder:
        server = ClickHouseServer(
            Path(folder), replica, zookeeper_port, keep_alive_seconds=keep_alive_seconds
        )
        try:
            server.start()
            yield server
        finally:
            server.stop()
