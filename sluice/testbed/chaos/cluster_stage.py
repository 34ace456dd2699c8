"""The real stack of a chaos run on a cluster: shards of replicas, ZooKeeper, data centers.

Each data center has a broker with data of its own, which is a connector, and its part of the
replicas; all connectors load into one table. Between driver and servers, and between each
replica and ZooKeeper, stand proxies. Replicas fetch parts from each other directly.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.config import Configuration, load
from sluice.core.errors import SluiceError, TerminalError
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.ledger import entries
from sluice.testbed.chaos.drivers import AllPositions, Drivers, Positions, Say
from sluice.testbed.chaos.layout import WORKERS, Layout, Victim
from sluice.testbed.chaos.proxy import Proxy
from sluice.testbed.chaos.requests import Inserts, Posts, kafka_requests
from sluice.testbed.chaos.schedule import Strike, Target
from sluice.testbed.chaos.spark_cluster import SparkCluster, running_spark, spark_section
from sluice.testbed.chaos.stage import (
    FOREIGN_TOPIC,
    LEASE_SECONDS,
    MAX_MESSAGES,
    PIPELINE,
    TABLE,
    ProxiedBroker,
    Stage,
)
from sluice.testbed.local.cluster.cluster import Cluster, require_programs
from sluice.testbed.local.cluster.server import ClickHouseServer
from sluice.testbed.local.orders import COLUMNS, LINEAGE
from sluice.testbed.local.producing import PARTITIONS, create_topic
from sluice.testbed.local.settings import pipeline_text

#: Two connectors with one table are foreign writers to each other, and half of the window is for
#: them within a lease. One with 100 entries, as a single server has, they would overrun by
#: themselves when they catch up, which is outside of what is promised.
WINDOW = 300
_PARTS_MAX = 3000
_OVERRUN_SECONDS_MAX = 120.0
_WHOLE_SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True)
class Center:
    """A data center's own Kafka. `access` goes past the proxy.

    :param topic: names differ between connectors: rows carry no connector.
    """

    name: str
    topic: str
    broker: ProxiedBroker
    link: Proxy
    access: KafkaAccess


@dataclass(frozen=True, slots=True)
class Loading:
    """How the cluster is loaded.

    :param lease_seconds: short on purpose where faults shall outlast it.
    """

    standalone: bool = False
    max_messages: int = MAX_MESSAGES
    max_delay: str = "1s"
    lease_seconds: int = LEASE_SECONDS
    partitions: int = PARTITIONS


@dataclass(slots=True)
class ClusterStage:
    """Everything that runs.

    :param ways: to each server of ClickHouse, by its name, like "s1/r2".
    :param sessions: from each server to ZooKeeper, likewise, and from the workers if they take
        the insert lock.
    :param posts: blocks that passed the ways, by what their attempts share.
    """

    layout: Layout
    centers: Mapping[str, Center]
    cluster: Cluster
    ways: Mapping[str, Proxy]
    sessions: Mapping[str, Proxy]
    spark: SparkCluster | None
    configuration: Configuration
    drivers: Drivers
    positions: AllPositions
    posts: Posts
    foreign_rows: int = field(default=0)

    # What is struck

    @property
    def single(self) -> None:
        """Several servers have the table."""
        return None

    @property
    def store(self) -> None:
        """Events are not deduplicated here."""
        return None

    def links(self) -> list[Proxy]:
        """All links."""
        kafka = [center.link for center in self.centers.values()]
        return [*kafka, *self.ways.values(), *self.sessions.values()]

    def insert_links(self) -> list[Proxy]:
        """Those that blocks pass."""
        return list(self.ways.values())

    def links_of(self, strike: Strike) -> list[Proxy]:
        """What a fault of links happens to; of a server, the link to it."""
        match strike.target:
            case Target.KAFKA_LINK | Target.BROKER:
                return [self.centers[strike.place].link]
            case Target.ZOOKEEPER_LINK:
                return [self.sessions[strike.place]]
            case Target.DATA_CENTER:
                servers = self.layout.servers_in(strike.place)
                return [self.centers[strike.place].link, *(self.ways[each] for each in servers)]
        return [self.ways[strike.place]]

    def victims_of(self, strike: Strike) -> list[Victim]:
        """What a fault of servers happens to."""
        match strike.target:
            case Target.BROKER:
                broker = self.centers[strike.place].broker
                return [Victim(broker, broker.start)]
            case Target.ZOOKEEPER:
                return [Victim(self.cluster.zookeeper, self.cluster.zookeeper.start)]
            case Target.DATA_CENTER:
                servers = self.layout.servers_in(strike.place)
                broker = self.centers[strike.place].broker
                return [Victim(broker, broker.start), *map(self.server, servers)]
        return [self.server(strike.place)]

    def server(self, name: str) -> Victim:
        """A server of ClickHouse by its name."""
        shard, _, replica = name.partition("/r")
        server = self.cluster.shards[shard][int(replica) - 1]
        return Victim(server, lambda: _start_with_table(server))

    def overrun_window(self) -> None:
        """A foreign writer adds more blocks than the table's window remembers, to each shard.

        :raises TerminalError: no replica takes them.
        """
        for servers in self.cluster.shards.values():
            until = time.monotonic() + _OVERRUN_SECONDS_MAX
            added = 0
            while added < WINDOW + WINDOW // 5:
                try:
                    added += self._add_foreign(servers[0].url, WINDOW + WINDOW // 5 - added)
                except SluiceError as error:
                    if time.monotonic() > until:
                        raise TerminalError(f"no foreign rows: {error}", "Read its log.") from error
                    time.sleep(0.2)

    def _add_foreign(self, url: str, count: int) -> int:
        """As many as go; raises only if none does."""
        with Server(url) as server:
            for done in range(count):
                self.foreign_rows += 1
                try:
                    server.execute(
                        f"INSERT INTO {TABLE} (order_id, _topic) "
                        f"VALUES ({10**12 + self.foreign_rows}, '{FOREIGN_TOPIC}')"
                    )
                except SluiceError:
                    if done:
                        return done
                    raise
        return count

    # What is looked at afterwards

    def make_whole(self) -> None:
        """Wait until every replica has a session with ZooKeeper and all that the others have.

        :raises TerminalError: one stays behind.
        """
        for server in self.cluster.servers:
            until = time.monotonic() + _WHOLE_SECONDS_MAX
            while (why := _why_behind(server.url)) is not None:
                if time.monotonic() > until:
                    raise TerminalError(f"{server.url} stays behind: {why}", "Read its log.")
                time.sleep(0.5)

    @property
    def rows_per_event(self) -> int:
        """There is one table entry."""
        return 1

    def ledger(self) -> list[Mapping[str, object]]:
        """Everything in the ledgers of all connectors."""
        topic = self.configuration.ledger_topic
        found = (entries(center.access, topic) for center in self.centers.values())
        return [entry for each in found for _, entry in each]

    def record_kinds(self) -> Counter[str]:
        """How often each kind of record stands in the ledgers: intend, renew, probe, …"""
        return Counter(str(entry["kind"]) for entry in self.ledger() if entry["type"] == "record")


#: What a chaos run breaks: links, servers, a driver.
AnyStage: TypeAlias = Stage | ClusterStage


def _start_with_table(server: ClickHouseServer) -> None:
    """Start a server. One (18.16.1) that cannot reach ZooKeeper while it loads its tables ends, or
    serves without them until it is started again [measured].

    :raises TerminalError: it does not come up, or has no table.
    """
    server.start()
    with Server(server.url) as asked:
        if not asked.query(f"EXISTS TABLE default.{TABLE}")[0]["result"]:
            raise TerminalError(f"{server.url} serves without default.{TABLE}", "Read its log.")


def _why_behind(url: str) -> str | None:
    try:
        with Server(url) as server:
            if describe_table(server, "default", TABLE).is_readonly:
                return "it is read-only"
            server.execute(f"SYSTEM SYNC REPLICA {TABLE}", timeout_seconds=60)
    except SluiceError as error:
        return str(error)
    return None


@contextmanager
def running_cluster_stage(
    folder: Path, layout: Layout, loading: Loading, say: Say
) -> Iterator[ClusterStage]:
    """Start it all but the driver; nothing is left running at the end.

    :raises TerminalError: something is not installed, or did not start.
    """
    require_programs()
    with ExitStack() as stack:
        cluster = Cluster(folder / "cluster", layout.shards, layout.replicas)
        stack.callback(cluster.kill)
        posts = Posts()
        named = dict(zip(layout.servers, cluster.servers, strict=True))
        zookeeper = ("127.0.0.1", cluster.zookeeper.port)
        sessions = {
            name: stack.enter_context(Proxy(Inserts, zookeeper)) for name in layout.zookeeper_links
        }
        for name, server in named.items():
            server.settings.zookeeper_port = sessions[name].port
        ways = {
            name: stack.enter_context(Proxy(posts.watch, ("127.0.0.1", server.settings.ports[0])))
            for name, server in named.items()
        }
        cluster.start()
        cluster.execute(_create_table(layout))
        centers = {name: _center(folder, name, loading, stack) for name in layout.centers}
        is_standalone = loading.standalone
        spark = stack.enter_context(running_spark(folder / "spark")) if is_standalone else None
        path = folder / "sluice.toml"
        locks = f"127.0.0.1:{sessions[WORKERS].port}" if layout.insert_locks else None
        path.write_text(_configuration(layout, loading, spark, [*centers.values()], ways, locks))
        configuration = load(path, os.environ)
        positions = AllPositions(
            [
                Positions(
                    center.access,
                    configuration.group(center.name),
                    center.topic,
                    loading.partitions,
                )
                for center in centers.values()
            ]
        )
        stack.callback(positions.close)
        drivers = Drivers(path, folder, say, lambda: spark.workers if spark else [])
        stack.callback(drivers.close)
        yield ClusterStage(
            layout=layout,
            centers=centers,
            cluster=cluster,
            ways=ways,
            sessions=sessions,
            spark=spark,
            configuration=configuration,
            drivers=drivers,
            positions=positions,
            posts=posts,
        )


def _center(folder: Path, name: str, loading: Loading, stack: ExitStack) -> Center:
    link = stack.enter_context(Proxy(kafka_requests()))
    broker = ProxiedBroker(folder / f"kafka-{name}", link)
    stack.callback(broker.kill)
    broker.start()
    access, topic = KafkaAccess(name, broker.brokers), f"{TABLE}-{name}"
    create_topic(access, topic, loading.partitions)
    return Center(name, topic, broker, link, access)


def _create_table(layout: Layout) -> str:
    return (
        f"CREATE TABLE {TABLE} ({', '.join(COLUMNS + LINEAGE)}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{{shard}}/{TABLE}', '{{replica}}') ORDER BY (user_id, ordered_at) "
        f"SETTINGS replicated_deduplication_window = {WINDOW}, "
        f"parts_to_delay_insert = {_PARTS_MAX}, parts_to_throw_insert = {_PARTS_MAX}"
    )


def _configuration(
    layout: Layout,
    loading: Loading,
    spark: SparkCluster | None,
    centers: Sequence[Center],
    ways: Mapping[str, Proxy],
    insert_locks: str | None,
) -> str:
    return pipeline_text(
        PIPELINE,
        [
            {
                "name": center.name,
                "brokers": f"127.0.0.1:{center.link.port}",
                "topics": [center.topic],
            }
            for center in centers
        ],
        [
            {
                "name": TABLE,
                "topics": [center.topic for center in centers],
                "sharding": {"by": "key", "column": "order_id"} if layout.shards > 1 else None,
            }
        ],
        batch={
            "max_messages": loading.max_messages,
            "max_delay": loading.max_delay,
            "lease": f"{loading.lease_seconds}s",
        },
        clickhouse={
            "shards": _urls(layout, ways),
            "durability": "quorum" if layout.replicas > 1 else "single",
            "zookeeper": insert_locks,
        },
        spark=spark_section(spark),
    )


def _urls(layout: Layout, ways: Mapping[str, Proxy]) -> dict[str, list[str]]:
    """Of each shard's replicas, past the proxies."""
    return {
        f"s{shard}": [
            f"http://127.0.0.1:{ways[name].port}"
            for name in layout.servers
            if name.startswith(f"s{shard}/")
        ]
        for shard in range(1, layout.shards + 1)
    }
