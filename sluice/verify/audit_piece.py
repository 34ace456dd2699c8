"""One piece of an audit: some offsets of one partition, against every table of its topic.

Pieces do not know of each other, so they can be judged anywhere, in any order, at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.errors import SluiceError, TransientError
from sluice.core.load_spec import Route
from sluice.core.ranges import Interval, Range, TopicPartition
from sluice.core.routing import Seen
from sluice.decode.routing import Routes
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import RangeVanishedError
from sluice.kafka.reader import RangeReader
from sluice.verify.audit_chunk import (
    Chunk,
    Counts,
    Flags,
    Held,
    TableAudit,
    Told,
    counts_of,
    flags_of,
)
from sluice.verify.audit_tables import Loaders, TableReader

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class PieceTable:
    """A table that the piece's topic is loaded into.

    :param entries: that loaded these messages into it.
    :param entries_now: that load into it now, where these are others or have other routes. A
        message that none of `entries` took, and one of these takes, may have a row.
    :param dead: sorted offsets of dead letters within the piece.
    :param shards: names of those that hold it.
    :param empty: by entry, offsets of messages that made no row there and need not.
    :param duplicates: sorted offsets of messages that made no row since others own their keys, of
        all entries together.
    :param whose: rows count; None where rows do not say who loaded them.
    :param told: see `TableAudit.judge`.
    """

    database: str
    table: str
    shards: tuple[str, ...]
    entries: tuple[str, ...]
    dead: NDArray[np.uint64]
    empty: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    whose: Loaders | None = None
    duplicates: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    told: tuple[Told, ...] | None = None
    entries_now: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """The offsets [begin, end) of a partition.

    :param assigned: the offsets whose rows must be there.
    :param settled: everything below this offset is settled.
    :param routes: of all entries that loaded the topic then, also of those that are not audited
        here; `routes_now` of those that load it now, for `PieceTable.entries_now`.
    :param is_recorded: see `Stretch`.
    """

    source: TopicPartition
    begin: int
    end: int
    assigned: tuple[Interval, ...]
    settled: int
    routes: Mapping[str, Route | None]
    tables: tuple[PieceTable, ...]
    routes_now: Mapping[str, Route | None] = field(default_factory=dict)
    is_recorded: bool = True


@dataclass(frozen=True, slots=True)
class Judged:
    """What a piece holds.

    :param tables: what was counted of each of its tables, in their order.
    """

    messages: int
    tombstones: int
    tables: tuple[TableAudit, ...]


class _Copies:
    """How many entries take each message of a piece, for each of its tables.

    :param routes: of all entries of the topic.
    :param entries: of each table.
    """

    def __init__(
        self,
        routes: Mapping[str, Route | None],
        entries: Sequence[tuple[str, ...]],
        piece: Piece,
    ) -> None:
        self.routes = Routes(routes)
        self._entries, self._begin = entries, piece.begin
        self.of_tables: list[Counts] = [
            np.full(piece.end - piece.begin, len(names), np.int32) for names in entries
        ]

    def take(self, values: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Messages whose routes decide."""
        for offset, message in zip(offsets, self.routes.read(values), strict=True):
            for names, wanted in zip(self._entries, self.of_tables, strict=True):
                wanted[offset - self._begin] = sum(self.routes.takes(n, message) for n in names)


class Judge:
    """Judges pieces; keeps its connections. Not thread-safe.

    :param is_gentle: it takes one thread of a server.
    """

    def __init__(
        self, kafka: KafkaAccess, clickhouse: ClickHouseAccess, *, is_gentle: bool = False
    ) -> None:
        self._clickhouse, self._is_gentle = clickhouse, is_gentle
        self._reader = RangeReader(kafka)
        self._tables: dict[tuple[str, str, tuple[str, ...]], TableReader] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def close(self) -> None:
        """Close consumers and connections."""
        self._pool.shutdown()
        self._reader.close()
        for table in self._tables.values():
            table.close()

    def judge(self, piece: Piece) -> Judged:
        """Read the log and count the tables' rows, at the same time.

        :raises TransientError: messages expired meanwhile, or a server does not answer.
        """
        source, begin, end = piece.source, piece.begin, piece.end
        rows = [
            self._pool.submit(self._reader_of(table).counts, source, begin, end, table.whose)
            for table in piece.tables
        ]
        copies = _Copies(piece.routes, [table.entries for table in piece.tables], piece)
        copies_now = _Copies(piece.routes_now, [each.entries_now for each in piece.tables], piece)
        valued, messages, tombstones = self._read(piece, (copies, copies_now))
        chunk = Chunk(begin, valued, flags_of(begin, end - begin, list(piece.assigned)))
        audits = tuple(TableAudit() for _ in piece.tables)
        each_table = zip(
            piece.tables, audits, rows, copies.of_tables, copies_now.of_tables, strict=True
        )
        for table, audit, future, wanted, wanted_now in each_table:
            found, different = future.result()
            held = Held(found, different, counts_of(begin, end - begin, table.dead))
            without = [flags_of(begin, end - begin, list(i)) for i in table.empty.values()]
            duplicates = counts_of(begin, end - begin, table.duplicates)
            free = (wanted == 0) & (wanted_now > 0)
            own = np.where(free, wanted_now, np.maximum(wanted - sum(without) - duplicates, 0))
            audit.judge(chunk, held, own, piece.settled, table.told, free)
            audit.duplicates += int(duplicates[valued].sum())
        return Judged(messages, tombstones, audits)

    def _reader_of(self, table: PieceTable) -> TableReader:
        key = (table.database, table.table, table.shards)
        if key not in self._tables:
            self._tables[key] = TableReader(self._clickhouse, *key, is_gentle=self._is_gentle)
        return self._tables[key]

    def _read(self, piece: Piece, counted: Sequence[_Copies]) -> tuple[Flags, int, int]:
        """Which offsets are messages with a value; how many messages and tombstones.

        :param counted: where routes decide, it is written which messages they take.
        """
        source, begin, end = piece.source, piece.begin, piece.end
        valued = np.zeros(end - begin, np.bool_)
        looking = [each for each in counted if each.routes.looks]

        def deliver(values: list[bytes], offsets: Sequence[int]) -> None:
            valued[np.array(offsets, np.int64) - begin] = True
            for each in looking:
                each.take(values, offsets)

        def look(messages: Sequence[Seen]) -> None:
            for each in looking:
                each.routes.look(messages)

        try:
            result = self._reader.read(
                Range(source, begin, end), _NO_LIMIT, deliver, look if looking else None
            )
        except RangeVanishedError as error:
            raise TransientError(
                f"the log of {source} changed while it was read: {error}",
                "Run the audit again.",
            ) from None
        return valued, result.messages, result.skipped


#: A worker process's judges.
_judges: dict[str, Judge] = {}


def judge_in_worker(
    kafka: KafkaAccess, clickhouse: ClickHouseAccess, piece: Piece
) -> Judged | SluiceError:
    """For a worker process, which keeps its connections; an error is a result, so that it
    arrives as what it is."""
    key = f"{kafka.connector}@{kafka.brokers}"
    try:
        if key not in _judges:
            _judges[key] = Judge(kafka, clickhouse)
        return _judges[key].judge(piece)
    except SluiceError as error:
        return error
