"""A worker that inserts blocks of one table on replicas that a test may break."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.window import read_insert_counter
from sluice.core.errors import InDoubtError
from sluice.core.ledger import Background
from sluice.core.load_spec import TableSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Receipt
from sluice.core.records import Kind as RecordKind
from sluice.core.records import Record
from sluice.decode.messages.decoded import Decoded
from sluice.kafka.clients import KafkaAccess
from sluice.testbed.local.cluster.server import ClickHouseServer
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.bundle import Bundle
from sluice.worker.inserting import ShardBlock, insert_block
from sluice.worker.leases import HeldLease
from sluice.worker.worker_cache import WorkerCache
from tests.clickhouse.helpers import native
from tests.driver.loop_world import table_spec
from tests.support.world import wait_for

COLUMNS = ("id", "_topic", "_partition", "_offset", "_row")


ROWS = 100


@dataclass
class Loader:
    """A worker that inserts blocks of one table, each of a range of its own."""

    servers: list[ClickHouseServer]
    table: str
    path: str
    urls: tuple[str, ...]
    durability: str = "single"
    quorum: int = 2
    quorum_timeout_seconds: float = 25.0
    zookeeper: str = ""
    user: str = "default"
    #: As the recorded load spec says; None: what is configured.
    recorded_quorum: int | None = None
    insert_timeout_seconds: float = 30.0
    preferred: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()
    looks: int = 0
    #: The end of the lease of each block.
    deadline_ms: int = 1 << 50

    def __post_init__(self) -> None:
        self.cache = WorkerCache()
        self.blocks = 0
        self.is_first = True
        self.insert_counters_behind = 0
        self.reservation = 1
        #: Since when the range has been in doubt, and who served it then.
        self.seconds_old = 0
        self.servers_then: dict[str, str] = {}

    @property
    def spec(self) -> TableSpec:
        with Server(self.servers[-1].url) as server:
            columns = describe_table(server, "default", self.table).columns
            zone = str(server.query("SELECT timezone() AS zone")[0]["zone"])
        paths = (("s1", self.path),) if self.path else ()
        quorum = self.recorded_quorum or (self.quorum if self.durability == "quorum" else 1)
        return replace(
            table_spec(self.table, ("a",)),
            database="default",
            columns=columns,
            time_zone=zone,
            lineage=COLUMNS[1:],
            zookeeper_paths=paths,
            quorums=(("s1", quorum),) if quorum > 1 else (),
            sorting_key="id",
        )

    @property
    def access(self) -> ClickHouseAccess:
        """How its blocks reach the servers."""
        return ClickHouseAccess(
            {"s1": self.urls},
            self.user,
            "",
            self.durability,  # type: ignore[arg-type]
            quorums={"s1": self.quorum},
            quorum_timeout_seconds=self.quorum_timeout_seconds,
            zookeeper=self.zookeeper,
            preferred=self.preferred,
            behind=self.behind,
            frozen=self.frozen,
            looks=self.looks,
        )

    def insert_counter(self) -> int:
        """Of the last server."""
        with Server(self.servers[-1].url) as server:
            return read_insert_counter(server, describe_table(server, "default", self.table))

    def insert(self, partition: int = 0) -> Receipt:
        """The next block of a partition."""
        spec = self.spec
        begin, self.blocks = self.blocks * ROWS, self.blocks + 1
        select = (
            f"SELECT number + {begin} AS id, 'a' AS _topic, toUInt32({partition}) AS _partition, "
            f"number + {begin} AS _offset, toUInt32(0) AS _row FROM numbers({ROWS})"
        )
        with Server(self.servers[-1].url) as server:
            block = native(server, select)
        block_range = Range(TopicPartition("a", partition), begin, begin + ROWS)
        lease = HeldLease(block_range, self.deadline_ms, 0)
        record = Record(
            RecordKind.INTEND,
            1,
            1,
            begin,
            begin + ROWS,
            "a",
            0,
            "topic",
            "text",
            self.reservation,
            self.deadline_ms,
        )
        insert_counters = {f"{self.table}/s1": self.insert_counter() - self.insert_counters_behind}
        assignment = Assignment(
            block_range,
            record,
            Background(
                insert_counters=insert_counters,
                since_ms=time.time_ns() // 1_000_000 - 1000 * self.seconds_old,
                servers=self.servers_then,
            ),
            sent_at_ms=0,
            is_first=self.is_first,
        )
        decoded = Decoded(
            native=memoryview(block),
            rows=ROWS,
            columns=COLUMNS,
            offsets=np.arange(begin, begin + ROWS, dtype=np.uint64),
            bad=(),
            clickhouse_partitions=1,
            checksum="",
            messages=ROWS,
        )
        environment = TaskEnvironment(
            "p",
            KafkaAccess("dc1", "127.0.0.1:1"),
            self.access,
            {},
            insert_timeout_seconds=self.insert_timeout_seconds,
        )
        self.cache.begin_range(self.looks)
        bundle = Bundle((assignment,))
        return insert_block(ShardBlock(self.cache, environment, bundle, spec, "s1", decoded, lease))

    def assert_stored_once(self, blocks: int | None = None) -> None:
        """Every replica has each row of all blocks once."""
        count = (self.blocks if blocks is None else blocks) * ROWS
        for each in self.servers:
            with Server(each.url) as server:
                if self.path:
                    wait_for(partial(self._has_fetched, server), 120, f"all rows at {each.url}")
                rows = server.query(
                    f"SELECT count() AS n, uniqExact(_offset) AS different FROM {self.table}"
                )
            assert rows == [{"n": count, "different": count}], each.url

    def _has_fetched(self, server: Server) -> bool:
        """All that the others have. A server that stood still, or was cut off, may learn by this
        only that its session with ZooKeeper is over."""
        with suppress(InDoubtError):
            server.execute(f"SYSTEM SYNC REPLICA {self.table}", timeout_seconds=60)
            return True
        return False


def create(
    servers: list[ClickHouseServer], path: str | None = None, settings: str = "", table: str = ""
) -> tuple[str, str]:
    """A table on these servers, of a name of its own or this one; gives its name and path."""
    table = table or f"t{uuid.uuid4().hex[:8]}"
    path = path or f"/tables/{table}"
    for each in servers:
        with Server(each.url) as server:
            server.execute(
                f"CREATE TABLE {table} (id UInt64, _topic String, _partition UInt32, "
                f"_offset UInt64, _row UInt32) ENGINE = "
                f"ReplicatedMergeTree('{path}', '{{replica}}') ORDER BY id{settings}"
            )
    return table, path
