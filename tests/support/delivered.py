"""A worker that brings blocks into a table under any delivery, and may be stopped at any step."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.insert import InsertPlan
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.staging import staging_tables
from sluice.clickhouse.window import read_insert_counter, read_server_run
from sluice.core.ledger import Background
from sluice.core.load_spec import LINEAGE_TYPES, Delivery, TableSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Receipt
from sluice.core.records import Kind, Record
from sluice.core.tokens import row_source
from sluice.decode.engine.native import checksum
from sluice.decode.messages.decoded import Decoded
from sluice.kafka.clients import KafkaAccess
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.bundle import Bundle
from sluice.worker.inserting import ShardBlock, insert_block
from sluice.worker.leases import HeldLease
from sluice.worker.staging import stage_block
from sluice.worker.worker_cache import WorkerCache
from tests.clickhouse.helpers import native
from tests.driver.loop_world import table_spec

ROWS = 90
#: Servers below deduplicate Replicated tables only.
OLD = (20,)
PARTITIONS = 3
COLUMNS = ("id", "_topic", "_partition", "_offset", "_row", "_source")
FOREVER_MS = 1 << 41
#: For whatever else is done while an attempt sleeps, and for its end.
_PATIENCE_SECONDS = 300.0


class Killed(BaseException):
    """The process of an attempt ends here; nothing in it can catch that."""


#: Called with the number of a statement, before it is sent and after it was answered.
Step = Callable[[int, bool], None]


class SteppedServer(Server):
    """A client that tells of each statement of an attempt."""

    def __init__(self, url: str, step: Step) -> None:
        super().__init__(url)
        self._step = step
        self.statements: list[str] = []

    def insert(self, plan: InsertPlan, *parts: Any) -> InsertReply:
        number = len(self.statements)
        self.statements.append(plan.query)
        self._step(number, False)
        reply = super().insert(plan, *parts)
        self._step(number, True)
        return reply


@dataclass
class DeliveredTable:
    """A table on one server, and the attempts at blocks of it.

    :param engine: "": the one that goes with the delivery.
    :param has_lineage: its rows say where they are from, and who loaded them.
    :param has_views: a view adds its rows up by three numbers, in two ClickHouse partitions, and
        another one copies what that table gets.
    :param block_rows: of each block.
    :param partitions: ClickHouse partitions that a block has rows of.
    """

    url: str
    delivery: Delivery = "staged"
    engine: str = ""
    has_lineage: bool = True
    settings: str = ""
    has_views: bool = False
    block_rows: int = ROWS
    partitions: int = PARTITIONS
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    #: By block: what is recorded of the table before the first attempt.
    then: dict[int, tuple[int, str]] = field(default_factory=dict)
    #: What a driver has read of the table, for all attempts; None: read anew for each, as where
    #: the table is altered.
    known: TableSpec | None = None
    #: By block and salt: what was decoded for the first attempt.
    made: dict[tuple[int, int], Decoded] = field(default_factory=dict)

    def create(self) -> None:
        lineage = ", ".join(f"{name} {kind}" for name, kind in LINEAGE_TYPES.items())
        lineage = lineage.replace("LowCardinality(String)", "String")
        keys = f"id, {', '.join(LINEAGE_TYPES)}" if self.delivery == "replacing" else "id"
        with Server(self.url) as server:
            if self.delivery == "block" and server.version() > OLD:
                self.settings = "SETTINGS non_replicated_deduplication_window = 1000"
            server.execute(
                f"CREATE TABLE {self.name} (id UInt64{', ' + lineage if self.has_lineage else ''}) "
                f"ENGINE = {self._engine(server)} PARTITION BY id % {self.partitions} "
                f"ORDER BY ({keys}) {self.settings}"
            )
            if self.has_views:
                self._create_views(server)

    def _engine(self, server: Server) -> str:
        if self.engine:
            return self.engine
        if self.delivery == "replacing":
            return "ReplacingMergeTree"
        if self.delivery == "block" and server.version() < OLD:
            return f"ReplicatedMergeTree('{self.path}', '{{replica}}')"
        return "MergeTree"

    def _create_views(self, server: Server) -> None:
        for name, engine in ("sums", "SummingMergeTree"), ("copies", "MergeTree"):
            server.execute(
                f"CREATE TABLE {self.name}_{name} (k UInt8, n UInt64) ENGINE = {engine} "
                f"PARTITION BY k % 2 ORDER BY k {self.settings}"
            )
        for name, source, select in (
            ("sums", self.name, "toUInt8(id % 3) AS k, count() AS n"),
            ("copies", f"{self.name}_sums", "k, sum(n) AS n"),
        ):
            server.execute(
                f"CREATE MATERIALIZED VIEW {self.name}_to_{name} TO {self.name}_{name} "
                f"AS SELECT {select} FROM {source} GROUP BY k"
            )

    @property
    def path(self) -> str:
        """In ZooKeeper, of a Replicated table."""
        return f"/tables/{self.name}"

    def drop(self) -> None:
        """Drop it with all that is beside it."""
        with Server(self.url) as server:
            rows = server.query(
                "SELECT name FROM system.tables WHERE database = 'default' "
                "AND substring(name, 1, 9) = {name:String} ORDER BY engine = 'MaterializedView' "
                "DESC",
                {"name": self.name},
            )
            for row in rows:
                server.execute(f"DROP TABLE {row['name']}")

    @property
    def spec(self) -> TableSpec:
        with Server(self.url) as server:
            facts = describe_table(server, "default", self.name)
            zone = str(server.query("SELECT timezone() AS zone")[0]["zone"])
        return replace(
            table_spec(self.name, ("a",)),
            database="default",
            columns=facts.columns,
            time_zone=zone,
            lineage=COLUMNS[1:] if self.has_lineage else (),
            sorting_key=facts.sorting_key,
            partition_key=facts.partition_key,
            zookeeper_paths=(("s1", self.path),) if facts.replicated else (),
            delivery=self.delivery,
        )

    def attempt(
        self,
        number: int = 0,
        step: Step = lambda number, is_done: None,
        *,
        deadline_ms: int = FOREVER_MS,
        salt: int = 0,
    ) -> Receipt:
        """One attempt, in a process of its own, at a block.

        :param number: of the block.
        :param salt: another one makes other rows.
        """
        cache = WorkerCache()
        cache.servers[self.url] = self.server = SteppedServer(self.url, step)
        if (number, salt) not in self.made:
            self.made[number, salt] = self.decoded(number, salt)
        spec = self.known or self.spec
        return self.deliver(cache, self.made[number, salt], number, spec, deadline_ms)

    def decoded(self, number: int, salt: int = 0) -> Decoded:
        """The rows of a block; see `attempt`."""
        begin, rows = number * self.block_rows, self.block_rows
        lineage = (
            f", 'a' AS _topic, toUInt32(0) AS _partition, number + {begin} AS _offset, "
            f"toUInt32(0) AS _row, '{self._loader}' AS _source"
        )
        select = f"SELECT number + {begin + salt} AS id{lineage if self.has_lineage else ''} "
        with Server(self.url) as server:
            block = native(server, f"{select} FROM numbers({rows})")
        return Decoded(
            native=memoryview(block),
            rows=rows,
            columns=COLUMNS if self.has_lineage else COLUMNS[:1],
            offsets=np.arange(begin, begin + rows, dtype=np.uint64),
            bad=(),
            clickhouse_partitions=self.partitions,
            checksum=checksum(block),
            messages=rows,
        )

    @property
    def _loader(self) -> str:
        told = {"pipeline": "p", "connector": "dc1", "topic_id": "topic", "entry": self.name}
        return row_source(**told, generation=0)

    def deliver(
        self,
        cache: WorkerCache,
        decoded: Decoded,
        number: int,
        spec: TableSpec,
        deadline_ms: int = FOREVER_MS,
        *,
        is_first: bool = False,
    ) -> Receipt:
        """One attempt of a worker at a block; see `attempt`.

        :param is_first: nobody tried before.
        """
        begin, end = number * self.block_rows, (number + 1) * self.block_rows
        block_range = Range(TopicPartition("a", 0), begin, end)
        what = (Kind.INTEND, 1, 1, begin, end, "a", 0, "topic", "text", self.partitions)
        insert_counter, run = (0, "") if is_first else self._recorded(number)
        assignment = Assignment(
            block_range,
            Record(*what, deadline_ms),
            Background(
                insert_counters={f"{self.name}/s1": insert_counter},
                since_ms=time.time_ns() // 1_000_000 - 60_000,
                servers={"s1": run} if run else {},
            ),
            sent_at_ms=0,
            is_first=is_first,
        )
        environment = TaskEnvironment(
            "p",
            KafkaAccess("dc1", "127.0.0.1:1"),
            ClickHouseAccess({"s1": (self.url,)}, "default", "", "single"),
            {},
        )
        lease = HeldLease(block_range, deadline_ms, 0)
        put = stage_block if self.delivery == "staged" else insert_block
        bundle = Bundle((assignment,))
        return put(ShardBlock(cache, environment, bundle, spec, "s1", decoded, lease))

    def _recorded(self, number: int) -> tuple[int, str]:
        """The insert counter, and which process served the table, before a block's first attempt;
        "": that does not matter, as of a Replicated table."""
        if self.delivery != "block":
            return 0, ""
        if number not in self.then:
            with Server(self.url) as server:
                facts = describe_table(server, "default", self.name)
                run = "" if facts.replicated else read_server_run(server)
                self.then[number] = (read_insert_counter(server, facts), run)
        return self.then[number]

    def killed(
        self, at: int, *, is_done: bool, number: int = 0, deadline_ms: int = FOREVER_MS
    ) -> bool:
        """An attempt that is killed at a statement; whether it came so far.

        :param is_done: after the server has executed it.
        """

        def step(statement: int, done: bool) -> None:
            if (statement, done) == (at, is_done):
                raise Killed

        try:
            self.attempt(number, step, deadline_ms=deadline_ms)
        except Killed:
            return True
        return False

    def rows(self) -> tuple[int, int]:
        """How many there are, and how many different ones, as the delivery wants them read."""
        final = " FINAL" if self.delivery == "replacing" else ""
        with Server(self.url) as server:
            select = f"SELECT count() AS n, uniqExact(id) AS d FROM {self.name}{final}"
            found = server.query(select)[0]
        return int(found["n"]), int(found["d"])

    def sums(self) -> set[int]:
        """How many rows the views behind it have seen."""
        behind = ("sums", "copies") if self.has_views else ()
        with Server(self.url) as server:
            found = [server.query(f"SELECT sum(n) AS n FROM {self.name}_{name}") for name in behind]
        return {int(rows[0]["n"]) for rows in found}

    def staged(self) -> list[str]:
        """The names of its staging tables, without their beginning."""
        with Server(self.url) as server:
            found = staging_tables(server, "default", f"{self.name}__sluice_")
        return [each.name.removeprefix(f"{self.name}__sluice_") for each in found]

    def assert_rows(self, blocks: int = 1) -> None:
        """Each row of all blocks is there once, and views have seen it once."""
        rows = blocks * ROWS
        assert self.rows() == (rows, rows)
        assert self.sums() <= {rows}

    def assert_once(self, blocks: int = 1) -> None:
        """The same, and of each block nothing is left but its marker."""
        self.assert_rows(blocks)
        assert all("_" not in name for name in self.staged()), self.staged()


class Paused:
    """An attempt in a thread, which stops before or after a statement until it may go on."""

    def __init__(self, table: DeliveredTable, at: int, *, is_done: bool, number: int = 0) -> None:
        self._number = number
        self._may_go, self._waits = threading.Event(), threading.Event()
        self._at = (at, is_done)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._attempt, args=(table,))
        self._thread.start()
        while self._thread.is_alive() and not self._waits.wait(0.005):
            pass

    def _attempt(self, table: DeliveredTable) -> None:
        try:
            replace(table).attempt(self._number, self._step)
        except BaseException as error:
            self.error = error

    def _step(self, number: int, is_done: bool) -> None:
        if (number, is_done) == self._at:
            self._waits.set()
            assert self._may_go.wait(_PATIENCE_SECONDS)

    def let_go(self) -> None:
        """Let it go on."""
        self._may_go.set()

    def finish(self) -> BaseException | None:
        """Let it go on to its end; gives what it ended with."""
        self.let_go()
        self._thread.join(_PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the attempt does not end"
        return self.error
