"""The real stack of a chaos run: broker and ClickHouse behind proxies, topic, table, drivers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sluice.clickhouse.http import Server
from sluice.config import Configuration, load
from sluice.core.load_spec import Delivery
from sluice.core.tokens import row_source, source_number
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.dead_letters import read_dead_letters
from sluice.kafka.ledger import entries
from sluice.kafka.log import SourceLog
from sluice.testbed.chaos.content import ContentReport, Rows, compare, compare_events, rows_in
from sluice.testbed.chaos.drivers import AllPositions, Drivers, Positions, Say
from sluice.testbed.chaos.layout import Victim
from sluice.testbed.chaos.proxy import Proxy
from sluice.testbed.chaos.requests import Inserts, kafka_requests
from sluice.testbed.chaos.schedule import Strike, Target
from sluice.testbed.chaos.sending import Truth
from sluice.testbed.chaos.spark_cluster import SparkCluster, running_spark, spark_section
from sluice.testbed.chaos.store import StoreKind, Struck, running_store
from sluice.testbed.local.broker import PROXY_VARIABLE
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.orders import TableKind
from sluice.testbed.local.producing import PARTITIONS, create_topic
from sluice.testbed.local.running import Broker, ClickHouse, running_clickhouse
from sluice.testbed.local.settings import DEDUPLICATE, Section, pipeline_text

TOPIC = TABLE = "orders"
#: Table entries that load the topic into the one table: each message becomes a row of each.
ENTRIES = (TOPIC, "again")
#: Where events are deduplicated there is one entry, and a second topic for events that come again.
MORE_TOPICS = ("orders-more",)
PIPELINE, CONNECTOR = "chaos", "local"
#: Small on purpose: the budget, the lease and the probe have work to do.
WINDOW = 100
LEASE_SECONDS = 10
MAX_MESSAGES = 10_000
FOREIGN_TOPIC = "foreign"
#: The time zone of the first start; see `change_zone`.
ZONE = "America/New_York"


class ProxiedBroker(Broker):
    """A broker with a second listener, whose clients are sent to a proxy."""

    def __init__(self, data: Path, proxy: Proxy) -> None:
        super().__init__(data)
        self._own_port = free_ports(1)[0]
        self._advertised = proxy.port
        proxy.server = ("127.0.0.1", self._own_port)

    @property
    def environment(self) -> dict[str, str]:
        return {PROXY_VARIABLE: f"{self._own_port}:{self._advertised}"}


@dataclass(slots=True)
class Stage:
    """Everything that runs. `access` and `clickhouse.url` go past the proxies.

    :param spark: master and workers, unless Spark is local.
    """

    broker: ProxiedBroker
    clickhouse: ClickHouse
    kafka_link: Proxy
    clickhouse_link: Proxy
    spark: SparkCluster | None
    access: KafkaAccess
    configuration: Configuration
    drivers: Drivers
    positions: AllPositions
    partitions: int
    store: Struck | None
    delivery: Delivery
    foreign_rows: int = 0
    added_columns: int = 0

    @property
    def single(self) -> Stage:
        """The stage itself: one server has the table."""
        return self

    def links(self) -> list[Proxy]:
        """All links."""
        of_store = [] if self.store is None else self.store.links
        return [self.kafka_link, self.clickhouse_link, *of_store]

    def insert_links(self) -> list[Proxy]:
        """Those that blocks pass."""
        return [self.clickhouse_link]

    def links_of(self, strike: Strike) -> list[Proxy]:
        """What a fault of links happens to; of a server, the link to it."""
        if self.store is not None and strike.target in (Target.STORE, Target.STORE_LINK):
            return self.store.links
        is_kafka = strike.target in (Target.KAFKA_LINK, Target.BROKER)
        return [self.kafka_link if is_kafka else self.clickhouse_link]

    def victims_of(self, strike: Strike) -> list[Victim]:
        """What a fault of servers happens to."""
        if self.store is not None and strike.target is Target.STORE:
            return self.store.victims
        server = self.broker if strike.target is Target.BROKER else self.clickhouse
        return [Victim(server, server.start)]

    @property
    def entries(self) -> tuple[str, ...]:
        """The table entries."""
        return ENTRIES if self.store is None else ENTRIES[:1]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of each of them."""
        return (TOPIC,) if self.store is None else (TOPIC, *MORE_TOPICS)

    @property
    def rows_per_event(self) -> int:
        """One of each table entry."""
        return len(self.entries)

    def compare(self, truth: Truth) -> ContentReport:
        """Every row and every dead letter of each entry against what was produced."""
        dead_letters = self.configuration.dead_letters_topic
        letters = list(read_dead_letters(self.access, dead_letters, to_log_end=True))
        topic_ids = {
            topic: ids[0]
            for topic, ids in SourceLog(make_admin(self.access)).topics(self.topics).items()
        }
        compares = compare if self.store is None else compare_events
        found = [
            compares(
                truth,
                lambda number, entry=entry: self._rows(topic_ids, entry, number),  # type: ignore[misc]
                (
                    (self.topics.index(each.topic) * self.partitions + each.partition, each.offset)
                    for each in letters
                    if each.table == entry
                ),
            )
            for entry in self.entries
        ]
        together = sum(found[1:], found[0])
        sources = [
            repr(self._source(topic_id, entry))
            for topic_id in topic_ids.values()
            for entry in self.entries
        ]
        with Server(self.clickhouse.url) as server:
            (others,) = server.query(
                f"SELECT count() AS n FROM {self._as_read} WHERE _topic != '{FOREIGN_TOPIC}' "
                f"AND _source NOT IN ({', '.join(sources)})"
            )
        return replace(together, foreign=together.foreign + int(others["n"]))

    def _rows(self, topic_ids: Mapping[str, str], entry: str, number: int) -> Rows:
        """Of an entry and a partition, counted over all topics."""
        topic = self.topics[number // self.partitions]
        source = self._source(topic_ids[topic], entry)
        return rows_in(self.clickhouse.url, self._as_read, topic, number % self.partitions, source)

    @property
    def _as_read(self) -> str:
        """The table, as its delivery has it read."""
        return f"{TABLE} FINAL" if self.delivery == "replacing" else TABLE

    def _source(self, topic_id: str, entry: str) -> int | str:
        """What `_source` says: a text where claims are made again from it."""
        source = row_source(
            pipeline=PIPELINE, connector=CONNECTOR, topic_id=topic_id, entry=entry, generation=0
        )
        return source if self.store is not None else source_number(source)

    def record_kinds(self) -> Counter[str]:
        """How often each kind of record stands in the ledger: intend, renew, probe, …"""
        return Counter(
            str(entry["kind"])
            for _, entry in entries(self.access, self.configuration.ledger_topic)
            if entry["type"] == "record"
        )

    def overrun_window(self) -> None:
        """A foreign writer adds more blocks than the table's window remembers."""
        self._add_foreign(WINDOW + WINDOW // 5)

    def fill_half_window(self) -> None:
        """As many as other writers may add within one lease."""
        self._add_foreign(WINDOW // 2 - 1)

    def add_column(self) -> None:
        """Not one of the events' fields, so the rows stay what they are."""
        self.added_columns += 1
        with Server(self.clickhouse.url) as server:
            server.execute(
                f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS "
                f"added_{self.added_columns} UInt32 DEFAULT {self.added_columns}"
            )

    def change_zone(self) -> None:
        """Each time the other one of two."""
        self.clickhouse.zone = "Pacific/Auckland" if self.clickhouse.zone != ZONE else ZONE

    def _add_foreign(self, blocks: int) -> None:
        with Server(self.clickhouse.url) as server:
            for _ in range(blocks):
                self.foreign_rows += 1
                server.execute(
                    f"INSERT INTO {TABLE} (order_id, _topic) "
                    f"VALUES ({10**12 + self.foreign_rows}, '{FOREIGN_TOPIC}')"
                )


@contextmanager
def running_stage(
    folder: Path,
    standalone: bool,
    say: Say,
    partitions: int = PARTITIONS,
    store: StoreKind | None = None,
    delivery: Delivery = "block",
) -> Iterator[Stage]:
    """Start it all but the driver; nothing is left running at the end.

    :param standalone: on a cluster of a master and two workers instead of `local[2]`.
    :param partitions: of each topic.
    :param store: of claims: events are deduplicated.
    :param delivery: of each table entry.
    :raises TerminalError: something did not start.
    """
    with ExitStack() as stack:
        kafka_link = stack.enter_context(Proxy(kafka_requests()))
        broker = ProxiedBroker(folder / "kafka", kafka_link)
        stack.callback(broker.kill)
        broker.start()
        clickhouse = stack.enter_context(running_clickhouse(folder / "clickhouse"))
        clickhouse_link = stack.enter_context(Proxy(Inserts, ("127.0.0.1", clickhouse.port or 0)))
        struck = stack.enter_context(running_store(folder, store)) if store else None
        spark = stack.enter_context(running_spark(folder / "spark")) if standalone else None
        access = KafkaAccess(CONNECTOR, broker.brokers)
        topics = (TOPIC, *(MORE_TOPICS if store else ()))
        for topic in topics:
            create_topic(access, topic, partitions)
        source = "String" if store else "UInt64"
        kind = TableKind(delivery, source=source, window=WINDOW)
        with Server(clickhouse.url) as server:
            server.execute(kind.statement(TABLE))
        path = folder / "sluice.toml"
        path.write_text(_configuration(kafka_link, clickhouse_link, spark, struck, delivery))
        configuration = load(path, os.environ)
        group = configuration.group(CONNECTOR)
        positions = AllPositions([Positions(access, group, each, partitions) for each in topics])
        stack.callback(positions.close)
        drivers = Drivers(path, folder, say, lambda: spark.workers if spark else [])
        stack.callback(drivers.close)
        yield Stage(
            broker=broker,
            clickhouse=clickhouse,
            kafka_link=kafka_link,
            clickhouse_link=clickhouse_link,
            spark=spark,
            access=access,
            configuration=configuration,
            drivers=drivers,
            positions=positions,
            partitions=partitions,
            store=struck,
            delivery=delivery,
        )


def _configuration(
    kafka_link: Proxy,
    clickhouse_link: Proxy,
    spark: SparkCluster | None,
    struck: Struck | None,
    delivery: Delivery,
) -> str:
    topics = (TOPIC, *(MORE_TOPICS if struck else ()))
    more: Section = {"deduplicate": DEDUPLICATE} if struck else {"delivery": delivery}
    entry = {"target": TABLE, "topics": topics, **more}
    brokers = f"127.0.0.1:{kafka_link.port}"
    return pipeline_text(
        PIPELINE,
        [{"name": CONNECTOR, "brokers": brokers, "topics": topics}],
        [{"name": each, **entry} for each in (ENTRIES[:1] if struck else ENTRIES)],
        batch={
            "max_messages": MAX_MESSAGES,
            "max_delay": "500ms",
            "lease": f"{LEASE_SECONDS}s",
        },
        clickhouse={"shards": {"s1": [f"http://127.0.0.1:{clickhouse_link.port}"]}},
        spark=spark_section(spark),
        deduplication=struck.section if struck else None,
    )
