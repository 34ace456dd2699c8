"""Shards of replicas with one ZooKeeper: as an object, and as what `sluice local cluster` runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.clickhouse.http import Server
from sluice.core.errors import TerminalError
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.cluster import server as clickhouse
from sluice.testbed.local.cluster import zookeeper as keeper
from sluice.testbed.local.cluster.server import ClickHouseServer, Settings, clickhouse_available
from sluice.testbed.local.cluster.zookeeper import ZooKeeper, zookeeper_available
from sluice.testbed.local.lifetime import StopRequest
from sluice.testbed.local.settings import Section, written

_PORTS_OF_A_SERVER = 3


class Cluster:
    """Shards s1, s2, … of replicas r1, r2, … Each process is killable, stoppable, restartable.

    :param folder: for data and logs; every process has a folder of its own in it.
    """

    def __init__(self, folder: Path, shards: int = 1, replicas: int = 2) -> None:
        ports = free_ports(1 + shards * replicas * _PORTS_OF_A_SERVER)
        self.zookeeper = ZooKeeper(folder / "zookeeper", ports.pop())
        taken = [
            [[ports.pop() for _ in range(_PORTS_OF_A_SERVER)] for _ in range(replicas)]
            for _ in range(shards)
        ]
        native = [[each[1] for each in shard] for shard in taken]
        #: By name of the shard, in order.
        self.shards: Mapping[str, Sequence[ClickHouseServer]] = {
            f"s{shard}": [
                ClickHouseServer(
                    folder / f"s{shard}-r{replica}",
                    Settings(
                        shard=f"s{shard}",
                        replica=f"r{replica}",
                        zookeeper_port=self.zookeeper.port,
                        cluster=native,
                        ports=each,
                    ),
                )
                for replica, each in enumerate(of_shard, 1)
            ]
            for shard, of_shard in enumerate(taken, 1)
        }

    @property
    def servers(self) -> list[ClickHouseServer]:
        """All of them, shard by shard."""
        return [server for replicas in self.shards.values() for server in replicas]

    def start(self) -> None:
        """Start everything, and return when everything answers.

        :raises TerminalError: a program is not installed, or does not come up.
        """
        require_programs()
        self.zookeeper.start()
        for server in self.servers:
            server.begin()
        for server in self.servers:
            server.wait_ready()

    def kill(self) -> None:
        """End everything at once: 18.16 takes ten seconds to end in order, and its data, if it
        is kept, survives a kill."""
        for child in (*self.servers, self.zookeeper):
            child.kill()

    def execute(self, sql: str) -> None:
        """Run a statement on every server."""
        for server in self.servers:
            with Server(server.url) as client:
                client.execute(sql, timeout_seconds=120)

    def section(self, *, asks: bool = False) -> str:
        """The `[clickhouse]` section of a configuration that loads into this cluster.

        :param asks: its replicas are asked of the servers.
        """
        shards = {name: [server.url for server in servers] for name, servers in self.shards.items()}
        is_quorum = len(next(iter(shards.values()))) > 1
        section: dict[str, object] = {
            "database": "default",
            "shards": list(shards) if asks else shards,
            "cluster": self.asked() if asks else None,
            "user": "default",
            "durability": "quorum" if is_quorum else "single",
            # These servers take one quorum insert at a time.
            "zookeeper": f"127.0.0.1:{self.zookeeper.port}" if is_quorum else None,
        }
        return written({"clickhouse": section})

    def asked(self) -> Section:
        """Who is asked, and the HTTP address of each: all are on one host here."""
        addresses = {f"127.0.0.1:{server.tcp_port}": server.url for server in self.servers}
        first = [servers[0].url for servers in self.shards.values()]
        return {"name": "default", "servers": first, "addresses": addresses}


#: To be run on every server: each fills in its own shard and replica.
EXAMPLE_TABLE = """\
CREATE TABLE orders (
    id UInt64, user_id UInt32, ts DateTime, amount Float64,
    _topic String, _partition UInt32, _offset UInt64, _row UInt32, _source UInt64
) ENGINE = ReplicatedMergeTree('/clickhouse/tables/{shard}/orders', '{replica}')
ORDER BY (user_id, ts)"""


def require_programs() -> None:
    """:raises TerminalError: what has to be installed first."""
    missing = []
    if not clickhouse_available():
        missing.append(("clickhouse-server", clickhouse.INSTALL))
    if not zookeeper_available():
        missing.append(("ZooKeeper", keeper.INSTALL))
    if missing:
        raise TerminalError(
            f"not installed on this machine: {' and '.join(name for name, _ in missing)}",
            "; ".join(how for _, how in missing),
        )


@contextmanager
def running_cluster(
    shards: int = 1, replicas: int = 2, folder: Path | None = None
) -> Iterator[Cluster]:
    """A cluster that ends with its context.

    :param folder: None for a temporary one, which goes with it.
    :raises TerminalError: it did not come up.
    """
    with TemporaryDirectory(prefix="sluice-cluster-") as temporary:
        cluster = Cluster(folder or Path(temporary), shards, replicas)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()


def run_cluster(shards: int, replicas: int) -> int:
    """Serve until SIGTERM or SIGINT, then end every process; the data goes with it.

    Prints the servers, a `[clickhouse]` section and a table once everything answers.

    :returns: 0, the exit status.
    :raises TerminalError: a program is not installed, or does not come up.
    """
    stop = StopRequest()
    with running_cluster(shards, replicas) as cluster:
        print(_introduction(cluster), flush=True)
        stop.wait()
    return 0


def _introduction(cluster: Cluster) -> str:
    lines = [
        f"{name} {server.settings.replica}  {server.url}  process {server.pid}"
        for name, servers in cluster.shards.items()
        for server in servers
    ]
    zookeeper = cluster.zookeeper
    lines.append(
        f"ZooKeeper  127.0.0.1:{zookeeper.port}  process {zookeeper.pid}",
    )
    return (
        "\n".join(lines)
        + f"\n\nFor a configuration (`sluice init` writes the rest):\n\n{cluster.section()}"
        + f"\nOr, with the replicas asked of the servers:\n\n{cluster.section(asks=True)}"
        + f"\nA table, to be made on every server:\n\n{EXAMPLE_TABLE}\n"
        + "\nCtrl-C ends all of it; the data goes with it."
    )
