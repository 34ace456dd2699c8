"""A worker that brings blocks into a table on the staged way, and may be stopped at any step."""

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
from sluice.core.load_spec import LINEAGE_TYPES, TableSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Receipt
from sluice.core.records import Kind, Record
from sluice.core.tokens import row_source
from sluice.decode.engine.native import checksum
from sluice.decode.messages.decoded import Decoded
from sluice.kafka.clients import KafkaAccess
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.bundle import Bundle
from sluice.worker.leases import HeldLease
from sluice.worker.staging import stage_block
from sluice.worker.worker_cache import WorkerCache
from tests.clickhouse.helpers import native
from tests.driver.loop_world import table_spec

ROWS = 90
PARTITIONS = 3
COLUMNS = ("id", "_topic", "_partition", "_offset", "_row", "_source")
FOREVER_MS = 1 << 41


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
class StagedTable:
    """A table on one server, and the attempts at blocks of it.

    :param has_lineage: its rows say where they are from, and who loaded them.
    """

    url: str
    engine: str = "MergeTree"
    has_lineage: bool = True
    settings: str = ""
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")

    def create(self) -> None:
        lineage = ", ".join(f"{name} {kind}" for name, kind in LINEAGE_TYPES.items())
        lineage = lineage.replace("LowCardinality(String)", "String")
        with Server(self.url) as server:
            server.execute(
                f"CREATE TABLE {self.name} (id UInt64{', ' + lineage if self.has_lineage else ''}) "
                f"ENGINE = {self.engine} PARTITION BY id % {PARTITIONS} ORDER BY id "
                f"{self.settings}"
            )

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
            delivery="staged",
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
        self.server = SteppedServer(self.url, step)
        cache = WorkerCache()
        cache.servers[self.url] = self.server
        begin = number * ROWS
        loader = row_source(
            pipeline="p", connector="dc1", topic_id="topic", entry=self.name, generation=0
        )
        lineage = (
            f", 'a' AS _topic, toUInt32(0) AS _partition, number + {begin} AS _offset, "
            f"toUInt32(0) AS _row, '{loader}' AS _source"
        )
        select = f"SELECT number + {begin + salt} AS id{lineage if self.has_lineage else ''} "
        with Server(self.url) as server:
            block = native(server, f"{select} FROM numbers({ROWS})")
        block_range = Range(TopicPartition("a", 0), begin, begin + ROWS)
        record = Record(
            *(Kind.INTEND, 1, 1, begin, begin + ROWS, "a", 0, "topic", "text", 1, deadline_ms)
        )
        since_ms = time.time_ns() // 1_000_000 - 60_000
        assignment = Assignment(
            block_range, record, {}, 1 << 30, 0, is_first=False, since_ms=since_ms
        )
        decoded = Decoded(
            native=memoryview(block),
            rows=ROWS,
            columns=COLUMNS if self.has_lineage else COLUMNS[:1],
            offsets=np.arange(begin, begin + ROWS, dtype=np.uint64),
            bad=(),
            clickhouse_partitions=PARTITIONS,
            checksum=checksum(block),
            messages=ROWS,
        )
        environment = TaskEnvironment(
            "p",
            KafkaAccess("dc1", "127.0.0.1:1"),
            ClickHouseAccess({"s1": (self.url,)}, "default", "", "single"),
            {},
        )
        lease = HeldLease(block_range, deadline_ms, 0)
        bundle = Bundle((assignment,))
        return stage_block(cache, environment, bundle, self.spec, "s1", decoded, lease)

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
        """How many there are, and how many different ones."""
        with Server(self.url) as server:
            found = server.query(f"SELECT count() AS n, uniqExact(id) AS d FROM {self.name}")[0]
        return int(found["n"]), int(found["d"])

    def staged(self) -> list[str]:
        """The names of its staging tables, without their beginning."""
        with Server(self.url) as server:
            found = staging_tables(server, "default", f"{self.name}__sluice_")
        return [each.name.removeprefix(f"{self.name}__sluice_") for each in found]

    def assert_once(self, blocks: int = 1) -> None:
        """Each row of all blocks is there once, and of each block its marker only."""
        assert self.rows() == (blocks * ROWS, blocks * ROWS)
        assert all("_" not in name for name in self.staged()), self.staged()


class Paused:
    """An attempt in a thread, which stops before or after a statement until it may go on."""

    def __init__(self, table: StagedTable, at: int, *, is_done: bool, number: int = 0) -> None:
        self._number = number
        self._may_go, self._waits = threading.Event(), threading.Event()
        self._at = (at, is_done)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._attempt, args=(table,))
        self._thread.start()
        while self._thread.is_alive() and not self._waits.wait(0.005):
            pass

    def _attempt(self, table: StagedTable) -> None:
        try:
            replace(table).attempt(self._number, self._step)
        except BaseException as error:
            self.error = error

    def _step(self, number: int, is_done: bool) -> None:
        if (number, is_done) == self._at:
            self._waits.set()
            assert self._may_go.wait(60)

    def let_go(self) -> None:
        """Let it go on."""
        self._may_go.set()

    def finish(self) -> BaseException | None:
        """Let it go on to its end; gives what it ended with."""
        self.let_go()
        self._thread.join(60)
        return self.error
