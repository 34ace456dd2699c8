"""ClickHouse in memory: shards of replicas, and tables whose deduplication window forgets, as a
real one does."""

from __future__ import annotations

import random
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sluice.core.load_spec import Column
from sluice.core.ranges import TopicPartition
from sluice.decode.messages.facts import Origins


class Row(NamedTuple):
    """One row.

    :param number: what it says of its message.
    :param value: what the partition key looks at.
    """

    source: TopicPartition
    offset: int
    number: int
    value: int


#: Where messages have several rows, what a row says is the number of its message times this, plus
#: its own number in the message.
ROW_NUMBERS = 4


class Block(bytes):
    """The body of an insert; only its length is bytes."""

    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    #: The table entry.
    entry: str
    #: Of which partitions it is, and who loads them, as the lineage column `_source` says.
    origins: Origins

    @property
    def sources(self) -> tuple[TopicPartition, ...]:
        """The partitions of its members, whether it has rows of them or not."""
        return tuple(origin.source for origin in self.origins.members)


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table is like.

    :param partition_divisor: rows with equal `value // divisor` lie in one ClickHouse
        partition; 0: not partitioned.
    :param seconds: of the window, for a Replicated table; None where time does not count.
    :param view: the target of a materialized view behind it, with a window of its own.
    :param merges: its engine merges rows away.
    :param is_many: messages have none, one or several rows.
    :param replaces: it keeps one of equal rows, so that blocks are sent past its window (R22).
    """

    name: str
    window_blocks: int
    seconds: int | None
    partition_divisor: int
    view: TableShape | None = None
    merges: bool = False
    is_many: bool = False
    replaces: bool = False

    @property
    def is_replicated(self) -> bool:
        """Whether its window is ZooKeeper's."""
        return self.seconds is not None

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
    Column("_source", "String"),
)
#: What rows of another pipeline say of who loaded them.
OTHERS = "another/pipeline"
#: So many may be added.
ADDED_MAX = 4


def groups_of(pattern: re.Pattern[str], sql: str) -> tuple[Any, ...]:
    """What a statement says of what is asked.

    :raises LookupError: it is written otherwise than the simulator knows it.
    """
    match = pattern.search(sql)
    if match is None:
        raise LookupError(f"the simulated server does not know the statement {sql}")
    return match.groups()


def clickhouse_partition(row: Row, divisor: int) -> int:
    """Where a row lies."""
    return row.value // divisor if divisor else 0


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One part that was stored.

    :param number: of its entry in the table's log, from 1 on.
    """

    identity: object
    rows: tuple[Row, ...]
    number: int


@dataclass(frozen=True, slots=True)
class InsertSettings:
    """How an insert asks to be deduplicated, by its settings."""

    deduplicates: bool = True
    deduplicates_views: bool = True


@dataclass(slots=True)
class Table:
    """A table in one shard, all its replicas: rows and the window; `insert_counter` grows with each
    part that is written."""

    shape: TableShape
    shard: str
    now_ms: Callable[[], int]
    tokens: bool
    #: What loads into it; () for the target of a view.
    entries: tuple[str, ...] = ()
    window: OrderedDict[object, int] = field(default_factory=OrderedDict)
    rows: dict[tuple[TopicPartition, int], Counter[int]] = field(default_factory=dict)
    insert_counter: int = 0
    #: What the insert counter falls short by until the next part is written: the newest ones were
    #: dropped.
    fallen: int = 0
    deduplicated: int = 0
    foreign: int = 0
    blocks: int = 0
    columns: tuple[Column, ...] = COLUMNS
    #: Until then every block is refused for good, with this code.
    refuses_until: int = 0
    refusal: str = ""
    views: list[Table] = field(default_factory=list)
    #: By replica, what it has not fetched yet.
    unfetched: dict[str, list[Part]] = field(default_factory=dict)
    #: Parts that were stored for Sluice; and, by range, how many there were before its first one
    #: and when that was, whose blocks are stored wholly, and how many there are.
    own: int = 0
    #: Who loaded a row of an offset; and how many rows of it another pipeline has there.
    loaders: dict[tuple[TopicPartition, int, int], str] = field(default_factory=dict)
    others: Counter[tuple[TopicPartition, int]] = field(default_factory=Counter)
    first_landing: dict[object, int] = field(default_factory=dict)
    first_landed_at: dict[object, int] = field(default_factory=dict)
    #: By range, the columns that the server hashed with its block when it was stored first.
    hashed_with: dict[object, tuple[Column, ...]] = field(default_factory=dict)
    landed: set[object] = field(default_factory=set)
    stored_of: Counter[object] = field(default_factory=Counter)
    #: Of each part of Sluice's, how many there were with it; and of those that were given up.
    created_at: dict[object, int] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    #: Called with what the window has just forgotten.
    forgotten: Callable[[Table, object], None] = lambda table, identity: None

    @property
    def path(self) -> str:
        """Where it is in ZooKeeper."""
        return f"/{self.shard}/{self.shape.name}" if self.shape.is_replicated else ""

    @property
    def target_shards(self) -> list[str]:
        """What its window is called in the ledger's insert counters, by each of its entries."""
        return [f"{entry}/{self.shard}" for entry in self.entries]

    def partitions_of(self, rows: Iterable[Row]) -> dict[int, list[Row]]:
        """Rows by ClickHouse partition."""
        parts: dict[int, list[Row]] = {}
        for row in rows:
            where = clickhouse_partition(row, self.shape.partition_divisor)
            parts.setdefault(where, []).append(row)
        return parts

    def insert(
        self,
        token: str | None,
        block: Block,
        columns: tuple[Column, ...],
        parts_max: int | None = None,
        settings: InsertSettings = InsertSettings(),
    ) -> list[Part]:
        """One part for each ClickHouse partition, each with an entry of its own; gives those that
        were new.

        :param columns: of the table when the insert began.
        :param parts_max: stop after so many: the insert fails half-way.
        """
        self.blocks += 1
        parts = self.partitions_of(block.rows)
        stored = []
        loaders = {origin.source: origin.loaded_by for origin in block.origins.members}
        for where in sorted(parts)[:parts_max]:
            rows = tuple(parts[where])
            # What is hashed is what is stored: the block, and what the server adds to it.
            hashed = (where, rows, block.columns, columns)
            identity = (where, token) if self.tokens and token is not None else hashed
            part = Part(identity, rows, self.insert_counter + 1)
            if self._insert_part(part, deduplicates=settings.deduplicates):
                stored.append(part)
                for row in rows:
                    self.loaders[row.source, row.offset, row.number] = loaders[row.source]
        if parts_max is None and (stored or settings.deduplicates_views):
            inner = replace(settings, deduplicates=settings.deduplicates_views)
            for view in self.views:
                view.insert(token, block, columns, None, inner)
        return stored

    def _insert_part(self, part: Part, *, deduplicates: bool) -> bool:
        self._expire()
        if deduplicates and part.identity in self.window:
            self.deduplicated += 1
            # A plain table numbers the part before it looks.
            if not self.shape.is_replicated:
                self.insert_counter, self.fallen = self.insert_counter + 1, 0
            return False
        if deduplicates:
            self._remember(part.identity)
        else:
            self.insert_counter, self.fallen = self.insert_counter + 1, 0
        self.own += 1
        self.created_at[part.identity] = self.own
        for row in part.rows:
            self.rows.setdefault((row.source, row.offset), Counter())[row.number] += 1
        return True

    def shown(self, source: TopicPartition, offset: int) -> Counter[int]:
        """The rows of a message that a reader is shown: of equal ones that are replaced, one."""
        found = +self.rows.get((source, offset), Counter())
        return Counter(found.keys()) if self.shape.replaces else found

    def has_again(self, rows: Iterable[Row]) -> bool:
        """Whether it has one of these more than once."""
        places = {(row.source, row.offset) for row in rows} & self.rows.keys()
        return any(max(self.rows[place].values()) > 1 for place in places)

    def lose(self, part: Part) -> None:
        """A part whose quorum never came is given up: its rows go, and its identity."""
        if self.window.pop(part.identity, None) is not None:
            self.given_up.append(self.created_at.pop(part.identity, 0))
        for row in part.rows:
            counts = self.rows[row.source, row.offset]
            counts[row.number] -= 1
            if not +counts:
                del self.rows[row.source, row.offset]
        for parts in self.unfetched.values():
            if part in parts:
                parts.remove(part)

    def lose_rows(self, part: Part) -> None:
        """A plain table wrote down that it knows a part, and died before it had it."""
        identity, at = part.identity, self.window.get(part.identity)
        self.lose(part)
        if at is not None:
            self.window[identity] = at
            self.created_at[identity] = self.given_up.pop()

    def entries_since(self, key: object) -> int:
        """Entries of Sluice's that came since the first block of a range, and are not given up."""
        first = self.first_landing.get(key, self.own)
        return self.own - first - sum(number > first for number in self.given_up)

    def entries_until_forgotten(self, token: str) -> int | None:
        """How many entries more push a part of this token out; None if none is in the window."""
        for place, identity in enumerate(self.window):
            if type(identity) is tuple and identity[-1] == token:
                return place + 1 + self.shape.window_blocks - len(self.window)
        return None

    def seconds_of(self, token: str) -> float:
        """How long ago the oldest part of this token was stored."""
        ages = [at for name, at in self.window.items() if type(name) is tuple and name[-1] == token]
        return (self.now_ms() - min(ages)) / 1000 if ages else 0.0

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

    def drop_newest(self, parts: int) -> None:
        """The newest parts of somebody else are dropped: a plain table's insert counter falls until
        the next part is written."""
        if not self.shape.is_replicated:
            self.fallen = min(parts, self.insert_counter)

    def _remember(self, identity: object) -> None:
        self.insert_counter, self.fallen = self.insert_counter + 1, 0
        self.window[identity] = self.now_ms()
        gone = []
        while len(self.window) > self.shape.window_blocks:
            gone.append(self.window.popitem(last=False)[0])
        self._expire()
        for each in gone:
            self.forgotten(self, each)

    def _expire(self) -> None:
        """Time counts from the newest entry on."""
        if self.shape.seconds is None or not self.window:
            return
        newest = next(reversed(self.window.values()))
        while newest - next(iter(self.window.values())) > self.shape.seconds * 1000:
            identity, _ = self.window.popitem(last=False)
            self.forgotten(self, identity)

    def present(
        self, url: str, source: TopicPartition, begin: int, end: int, loader: str | None
    ) -> dict[int, Counter[int]]:
        """By offset, how often each of its rows is there, as a replica shows them; rows of another
        pipeline are all alike.

        :param loader: whose rows; None: everybody's.
        """
        found: dict[int, Counter[int]] = {}
        for offset in range(begin, end):
            here = found.setdefault(offset, Counter())
            if loader is None or loader == OTHERS:
                here[0] += self.others[source, offset]
            for number, count in self.rows.get((source, offset), {}).items():
                if loader is None or loader == self.loaders.get((source, offset, number)):
                    here[self._row_of(number)] += count
        for part in self.unfetched.get(url, ()):
            for row in part.rows:
                if row.source != source or row.offset not in found:
                    continue
                if loader in (None, self.loaders.get((source, row.offset, row.number))):
                    found[row.offset][self._row_of(row.number)] -= 1
        return {
            offset: +rows
            for offset, rows in found.items()
            if +rows and not (self.shape.merges and offset % 3 == 0)
        }

    def _row_of(self, number: int) -> int:
        return number % ROW_NUMBERS if self.shape.is_many else 0


@dataclass(slots=True)
class Host:
    """One server.

    :param running: how many inserts run under each query id.
    :param skew_ms: how far its wall clock is off.
    """

    url: str
    shard: str
    tables: Mapping[str, Table]
    skew_ms: int
    running: Counter[str] = field(default_factory=Counter)
    down_until: int = 0
    read_only_until: int = 0
    restarts: int = 0
    started_at: int = 0


class ClickHouse:
    """All shards; each has one server, or two replicas."""

    def __init__(self, shards: Mapping[str, Mapping[str, Table]], hosts: Iterable[Host]) -> None:
        self.shards = shards
        self.hosts = {host.url: host for host in hosts}

    def tables(self) -> Iterator[Table]:
        """Every table in every shard, targets of views aside."""
        for tables in self.shards.values():
            yield from tables.values()

    def with_views(self) -> list[Table]:
        """Every table in every shard, and the targets of their views."""
        return [each for table in self.tables() for each in (table, *table.views)]

    def of_name(self, name: str) -> list[Table]:
        """A table in each shard."""
        return [tables[name] for tables in self.shards.values()]

    def names(self) -> list[str]:
        """The names of the tables."""
        return list(next(iter(self.shards.values())))

    def strike(self, rng: random.Random) -> list[Host]:
        """Who is away next: mostly one server, where there are several."""
        hosts = list(self.hosts.values())
        return [rng.choice(hosts)] if len(hosts) > 1 and rng.random() < 0.8 else hosts

    def replicas_of(self, shard: str) -> list[Host]:
        """The servers of a shard."""
        return [host for host in self.hosts.values() if host.shard == shard]
