"""One ClickHouse server (Debian's 18.16.1) on free ports of loopback.

It has no deduplication tokens and deduplicates Replicated tables only: the oldest server that
Sluice serves, where the embedded engine stands for the newest.
"""

from __future__ import annotations

import http.client
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.clickhouse.http import Server
from sluice.core.errors import TerminalError
from sluice.testbed.local.children import Child, free_ports

USERS = Path("/etc/clickhouse-server/users.xml")
INSTALL = "Debian: apt-get install clickhouse-server"

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
  <macros><shard>{shard}</shard><replica>{replica}</replica></macros>
  <remote_servers><default>{shards}</default></remote_servers>
  {zookeeper}{more}
</yandex>
"""

_ZOOKEEPER = """<zookeeper>
    <node><host>127.0.0.1</host><port>{port}</port></node>
    <session_timeout_ms>{session_timeout_ms}</session_timeout_ms>
  </zookeeper>"""


def clickhouse_available() -> bool:
    """Whether Debian's clickhouse-server package is installed."""
    return shutil.which("clickhouse-server") is not None and USERS.exists()


@dataclass(slots=True)
class Settings:
    """What a server is started with.

    :param shard: value of the macro {shard}; `replica` of {replica}.
    :param zookeeper_port: None for no ZooKeeper.
    :param session_timeout_ms: after so long without it ZooKeeper takes a server for dead.
    :param cluster: native ports of all servers of the cluster "default", shard by shard; empty
        for the server itself.
    :param users: XML of users besides `default`, who has no password.
    :param more: XML of further settings.
    """

    shard: str = "s1"
    replica: str = "r1"
    zookeeper_port: int | None = None
    session_timeout_ms: int = 4000
    keep_alive_seconds: int = 10
    cluster: Sequence[Sequence[int]] = ()
    users: str = ""
    more: str = ""
    ports: list[int] = field(default_factory=lambda: free_ports(3))


class ClickHouseServer(Child):
    """One server process, loopback only."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        super().__init__(folder)
        self.settings = settings or Settings()

    @property
    def url(self) -> str:
        """Its HTTP address."""
        return f"http://127.0.0.1:{self.settings.ports[0]}"

    @property
    def tcp_port(self) -> int:
        """Of the native protocol."""
        return self.settings.ports[1]

    def start(self) -> None:
        """Start and wait until /ping answers.

        :raises TerminalError: it is not installed, or does not come up.
        """
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start without waiting.

        :raises TerminalError: it is not installed.
        """
        if not clickhouse_available():
            raise TerminalError("clickhouse-server is not installed", INSTALL)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "config.xml").write_text(self._configuration())
        self.write_users()
        self.launch(["clickhouse-server", f"--config-file={self.folder}/config.xml"])

    def write_users(self) -> None:
        """Write the users of its settings; a server that runs reads them within seconds."""
        users = USERS.read_text().replace("</users>", f"{self.settings.users}</users>")
        path = self.folder / "users.xml"
        # A server sees by the second whether a file has changed.
        changed_at = max(time.time(), path.stat().st_mtime + 1 if path.exists() else 0)
        path.write_text(users)
        os.utime(path, (changed_at, changed_at))

    def describe_cluster(self, cluster: Sequence[Sequence[int]]) -> None:
        """Let a running server know the cluster "default" as this from now on.

        :param cluster: as in `Settings`.
        """
        self.settings.cluster = cluster
        (self.folder / "config.xml").write_text(self._configuration())
        with Server(self.url) as server:
            server.execute("SYSTEM RELOAD CONFIG")

    def wait_ready(self) -> None:
        """Wait until /ping answers.

        :raises TerminalError: it does not come up.
        """
        http_port = self.settings.ports[0]
        self.wait_until(lambda: answers_ping(http_port), "error.log")

    def _configuration(self) -> str:
        settings = self.settings
        http_port, tcp, interserver = settings.ports
        zookeeper = ""
        if settings.zookeeper_port is not None:
            zookeeper = _ZOOKEEPER.format(
                port=settings.zookeeper_port, session_timeout_ms=settings.session_timeout_ms
            )
        return _CONFIGURATION.format(
            folder=self.folder,
            http=http_port,
            tcp=tcp,
            interserver=interserver,
            keep_alive_seconds=settings.keep_alive_seconds,
            shard=settings.shard,
            replica=settings.replica,
            shards="".join(map(_shard, settings.cluster or [[tcp]])),
            zookeeper=zookeeper,
            more=settings.more,
        )


def _shard(ports: Sequence[int]) -> str:
    replicas = "".join(
        f"<replica><host>127.0.0.1</host><port>{port}</port></replica>" for port in ports
    )
    return f"<shard><internal_replication>true</internal_replication>{replicas}</shard>"


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
