"""ClickHouse in memory: tables whose deduplication window forgets, as a real one does."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.clickhouse.schema import TableFacts
from sluice.core.dynamic import DynamicColumns
from sluice.core.ranges import TopicPartition
from sluice.core.text import Column, TableText

#: Offset, what the row says of its message, and the value that the partition key looks at.
Row = tuple[int, int, int]


class Block(bytes):
    """The body of an insert; only its length is bytes."""

    source: TopicPartition
    rows: tuple[Row, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table is like.

    :param partition_divisor: rows with equal `value // divisor` lie in one ClickHouse
        partition; 0: not partitioned.
    :param seconds: of the window, for a Replicated table; None where time does not count.
    :param path: of a Replicated table in ZooKeeper, where there are two replicas of it.
    """

    name: str
    window_blocks: int
    seconds: int | None
    partition_divisor: int
    #: Not shown: seeds draw by how the tables are shown.
    path: str = field(default="", repr=False)

    @property
    def partition_key(self) -> str:
        """As the server shows it."""
        return f"intDiv(value, {self.partition_divisor})" if self.partition_divisor else ""


COLUMNS = (
    Column("number", "UInt64"),
    Column("value", "UInt32"),
    Column("_topic", "String"),
    Column("_partition", "UInt32"),
    Column("_offset", "UInt64"),
    Column("_row", "UInt32"),
)
LINEAGE = ("_topic", "_partition", "_offset", "_row")
#: So many may be added.
ADDED_MAX = 4


def clickhouse_partition(row: Row, divisor: int) -> int:
    """Where a row lies."""
    return row[2] // divisor if divisor else 0


@dataclass(slots=True)
class Table:
    """Rows and the window; `mark` grows with each part that is written."""

    shape: TableShape
    now_ms: Callable[[], int]
    tokens: bool
    window: OrderedDict[object, int] = field(default_factory=OrderedDict)
    rows: dict[tuple[TopicPartition, int], Counter[int]] = field(default_factory=dict)
    mark: int = 0
    deduplicated: int = 0
    foreign: int = 0
    blocks: int = 0
    columns: tuple[Column, ...] = COLUMNS
    #: Until then every block is refused for good, with this code.
    refuses_until: int = 0
    refusal: str = ""

    def insert(
        self,
        token: str | None,
        block: Block,
        columns: tuple[Column, ...],
        parts_max: int | None = None,
    ) -> None:
        """One part for each ClickHouse partition, each with an entry of its own.

        :param columns: of the table when the insert began.
        :param parts_max: stop after so many: the insert fails half-way.
        """
        self.blocks += 1
        parts: dict[int, list[Row]] = {}
        for row in block.rows:
            where = clickhouse_partition(row, self.shape.partition_divisor)
            parts.setdefault(where, []).append(row)
        for where in sorted(parts)[:parts_max]:
            rows = tuple(parts[where])
            # What is hashed is what is stored: the block, and what the server adds to it.
            hashed = (where, block.source, rows, block.columns, columns)
            identity = (where, token) if self.tokens else hashed
            self._insert_part(identity, block.source, rows)

    def _insert_part(self, identity: object, source: TopicPartition, rows: Iterable[Row]) -> None:
        self._expire()
        if identity in self.window:
            self.deduplicated += 1
            # A plain table numbers the part before it looks.
            self.mark += self.shape.seconds is None
            return
        self._remember(identity)
        for offset, number, _ in rows:
            self.rows.setdefault((source, offset), Counter())[number] += 1

    def add_column(self) -> None:
        """ALTER TABLE … ADD COLUMN; messages have always had a field for it."""
        number = sum(column.name.startswith("added") for column in self.columns)
        if number < ADDED_MAX:
            self.columns += (Column(f"added{number}", "UInt8"),)

    def change_divisor(self, divisor: int) -> None:
        """Another partition key, as after the table was made anew and filled from the old one."""
        self.shape = replace(self.shape, partition_divisor=divisor)

    def write_foreign(self, parts: int) -> None:
        """Somebody else inserts."""
        for _ in range(parts):
            self.foreign += 1
            self._remember(("foreign", self.foreign))

    def _remember(self, identity: object) -> None:
        self.mark += 1
        self.window[identity] = self.now_ms()
        while len(self.window) > self.shape.window_blocks:
            self.window.popitem(last=False)
        self._expire()

    def _expire(self) -> None:
        """Time counts from the newest entry on."""
        if self.shape.seconds is None or not self.window:
            return
        newest = next(reversed(self.window.values()))
        while newest - next(iter(self.window.values())) > self.shape.seconds * 1000:
            self.window.popitem(last=False)

    def facts(self) -> TableFacts:
        """As `describe_table` gives them."""
        replicated = self.shape.seconds is not None
        return TableFacts(
            url="",
            database="d",
            table=self.shape.name,
            uuid="",
            engine="ReplicatedMergeTree" if replicated else "MergeTree",
            engine_full="",
            columns=self.columns,
            partition_key=self.shape.partition_key,
            sorting_key="number",
            replicated=replicated,
            zookeeper_path=self.shape.path,
            replicas_total=1,
            replicas_active=1,
            is_readonly=False,
            window_blocks=self.shape.window_blocks,
            window_seconds=self.shape.seconds,
            async_insert=False,
            dependents=(),
        )


def table_text(
    facts: TableFacts,
    topics: tuple[str, ...],
    *,
    has_lineage: bool,
    dynamic: DynamicColumns | None = None,
) -> TableText:
    """The entry of a configuration text for this table."""
    return TableText(
        entry=facts.table,
        database=facts.database,
        table=facts.table,
        topics=topics,
        format="JSONEachRow",
        columns=facts.columns,
        lineage=LINEAGE if has_lineage else (),
        partition_key=facts.partition_key,
        sorting_key=facts.sorting_key,
        unknown_fields="ignore" if dynamic is None else "refuse",
        on_null="dead-letter",
        time_zone="UTC",
        shards=("s1",),
        dynamic=dynamic,
        zookeeper_paths=(("s1", facts.zookeeper_path),) if facts.zookeeper_path else (),
    )


@dataclass(slots=True)
class ClickHouse:
    """The shard s1: one server, or two replicas that have everything at once, each of which may
    fail to answer by itself.

    :param running: how many inserts run under each query id.
    :param away: how the URL of the replica begins that is down or read-only; "": all of them.
    :param skew_ms: how far its wall clock is off.
    """

    tables: Mapping[str, Table]
    running: Counter[str] = field(default_factory=Counter)
    down_until: int = 0
    read_only_until: int = 0
    away: str = ""
    restarts: int = 0
    skew_ms: int = 0

    def restart(self, down_until: int) -> None:
        """All of it; what runs is lost."""
        self.restarts += 1
        self.away, self.down_until = "", down_until

    def choose(self, replicas: Sequence[str], rng: random.Random) -> ClickHouse:
        """Who is away next: where there are two replicas, mostly one of them."""
        one = len(replicas) > 1 and rng.random() < 0.7
        self.away = rng.choice(replicas) if one else ""
        return self

    def is_down(self, url: str, now: int) -> bool:
        """Whether nothing answers there."""
        return self.down_until > now and url.startswith(self.away)

    def is_read_only(self, url: str, now: int) -> bool:
        """Whether it takes no inserts."""
        return self.read_only_until > now and url.startswith(self.away)
