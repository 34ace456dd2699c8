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

    :param entries: that load messages into it.
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


@dataclass(frozen=True, slots=True)
class Piece:
    """The offsets [begin, end) of a partition.

    :param assigned: the offsets whose rows must be there.
    :param settled: everything below this offset is settled.
    :param routes: of all entries of the topic, also of those that are not audited here.
    """

    source: TopicPartition
    begin: int
    end: int
    assigned: tuple[Interval, ...]
    settled: int
    routes: Mapping[str, Route | None]
    tables: tuple[PieceTable, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """What a piece holds.

    :param tables: what was counted of each of its tables, in their order.
    """

    messages: int
    tombstones: int
    tables: tuple[TableAudit, ...]


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
        copies = [np.full(end - begin, len(table.entries), np.int32) for table in piece.tables]
        valued, messages, tombstones = self._read(piece, copies)
        chunk = Chunk(begin, valued, flags_of(begin, end - begin, list(piece.assigned)))
        audits = tuple(TableAudit() for _ in piece.tables)
        for table, audit, future, wanted in zip(piece.tables, audits, rows, copies, strict=True):
            found, different = future.result()
            held = Held(found, different, counts_of(begin, end - begin, table.dead))
            without = [flags_of(begin, end - begin, list(i)) for i in table.empty.values()]
            duplicates = counts_of(begin, end - begin, table.duplicates)
            own = wanted - sum(without) - duplicates
            audit.judge(chunk, held, own, piece.settled, table.told)
            audit.duplicates += int(duplicates[valued].sum())
        return Judged(messages, tombstones, audits)

    def _reader_of(self, table: PieceTable) -> TableReader:
        key = (table.database, table.table, table.shards)
        if key not in self._tables:
            self._tables[key] = TableReader(self._clickhouse, *key, is_gentle=self._is_gentle)
        return self._tables[key]

    def _read(self, piece: Piece, copies: list[Counts]) -> tuple[Flags, int, int]:
        """Which offsets are messages with a value; how many messages and tombstones.

        :param copies: for each table, how many of its entries load each message; written to
            where routes decide.
        """
        source, begin, end = piece.source, piece.begin, piece.end
        valued = np.zeros(end - begin, np.bool_)
        routes = Routes(piece.routes)

        def deliver(values: list[bytes], offsets: Sequence[int]) -> None:
            valued[np.array(offsets, np.int64) - begin] = True
            if not routes.looks:
                return
            for offset, message in zip(offsets, routes.read(values), strict=True):
                for table, wanted in zip(piece.tables, copies, strict=True):
                    taken = (routes.takes(entry, message) for entry in table.entries)
                    wanted[offset - begin] = sum(taken)

        try:
            result = self._reader.read(
                Range(source, begin, end), _NO_LIMIT, deliver, routes.look if routes.looks else None
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
