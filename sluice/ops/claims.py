"""Claims against tables: made again from the rows that are there, and compared with them (R20)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from sluice.claims.port import ClaimStore
from sluice.claims.stores import open_store
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.insert import QUERY_ID_PREFIX
from sluice.clickhouse.probe import running_query_ids
from sluice.clickhouse.recent import old_parts, rows_but, seeing_all_but
from sluice.clickhouse.schema import describe_table
from sluice.config import Configuration
from sluice.core.claims import Keys, Owners, key_space
from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.native_stream import blocks
from sluice.decode.keys.hashing import RowKeys
from sluice.driver.probing import StillRunningError, require_all_answer, require_fetched
from sluice.driver.specs import access_of, read_spec, registry_access, store_access
from sluice.verify.message_keys import decoder_of

_logger = logging.getLogger("sluice.claims")

#: Rows in memory at once; a server's block more at most.
CHUNK_ROWS = 200_000
#: An insert that was begun before a look may run on for so long.
_ENDED_SECONDS = 60.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """A table whose rows have keys of one space.

    :param entries: that load it so.
    """

    space: str
    entries: tuple[str, ...]
    table: TableSpec

    @property
    def window_seconds(self) -> int:
        """How long a claim holds."""
        assert self.table.deduplicate is not None
        return self.table.deduplicate.window_seconds


@dataclass(slots=True)
class Rebuilt:
    """What became of a table's rows.

    :param rows: that were read, and have a key.
    :param claimed: whose message owns their key now, whoever claimed it for it.
    :param others: whose key another message has: of an event that came again after its window.
    """

    target: str
    space: str
    entries: tuple[str, ...]
    rows: int = 0
    claimed: int = 0
    others: int = 0


def keyed_tables(
    configuration: Configuration,
    connector: str | None = None,
    entry: str | None = None,
    space: str | None = None,
) -> list[KeyedTable]:
    """The tables of entries that deduplicate, once for each key space: whichever connector or entry
    has loaded a row, its key is the same.

    :param connector: only of its entries; likewise the others.
    :raises ConfigurationError: there are none.
    """
    found: dict[tuple[str, str], KeyedTable] = {}
    names = [each.name for each in configuration.connectors]
    if connector is not None:
        names = [configuration.connector(connector).name]
    for name in names:
        for table in read_spec(configuration, name).tables:
            if table.deduplicate is None or entry not in (None, table.entry):
                continue
            where = (key_space(table.deduplicate, table.columns), table.target)
            if space in (None, where[0]):
                before = found.get(where)
                entries = (*(() if before is None else before.entries), table.entry)
                longest = max(
                    (table, *(() if before is None else (before.table,))), key=_window_seconds
                )
                found[where] = KeyedTable(where[0], tuple(sorted(set(entries))), longest)
    if not found:
        raise ConfigurationError(
            "no table entry that is meant deduplicates",
            "Name one with `deduplicate`, or a connector that loads one.",
        )
    return [found[where] for where in sorted(found)]


def _window_seconds(table: TableSpec) -> int:
    assert table.deduplicate is not None
    return table.deduplicate.window_seconds


def store_of(configuration: Configuration) -> ClaimStore:
    """The store of claims.

    :raises ConfigurationError: none is configured.
    """
    if configuration.deduplication is None:
        raise ConfigurationError(
            "no store of claims is configured", "Name one in [deduplication] store."
        )
    return open_store(store_access(configuration.deduplication))


def rebuild(
    configuration: Configuration, tables: list[KeyedTable], since_ms: int | None = None
) -> list[Rebuilt]:
    """Claim the key of each row that came since then for the message that it is of, where nobody
    has it. A part is read as a whole, so older rows are claimed with it.

    :param since_ms: None: for each table, as long ago as its window.
    :raises SluiceError: not every replica answers, not all rows are shown, or the store does not
        answer; what was claimed by then stays, and the command may be repeated.
    """
    with closing(store_of(configuration)) as store:
        return [_rebuild(configuration, store, each, since_ms) for each in tables]


def _rebuild(
    configuration: Configuration, store: ClaimStore, keyed: KeyedTable, since_ms: int | None
) -> Rebuilt:
    found = Rebuilt(keyed.table.target, keyed.space, keyed.entries)
    window_ms = 1000 * keyed.window_seconds
    age_ms = window_ms if since_ms is None else max(0, time.time_ns() // 1_000_000 - since_ms)
    for keys, owners in stored_keys(configuration, keyed, age_ms // 1000 + 1):
        now_s = int(time.time())
        holders = store.claim(keys, owners, now_s + keyed.window_seconds, now_s)
        mine = int((holders == owners).all(axis=1).sum())
        found.rows += len(keys)
        found.claimed += mine
        found.others += len(keys) - mine
        _logger.info("%s: %d rows read", found.target, found.rows)
    return found


def stored_keys(
    configuration: Configuration, keyed: KeyedTable, age_seconds: int
) -> Iterator[tuple[Keys, Owners]]:
    """Keys and owners of the rows in all parts that are younger, chunk by chunk.

    :raises TransientError: a replica does not answer, or is behind; or an insert still runs.
    :raises TerminalError: a server does not show all rows; or it has them in a type that cannot be
        read in chunks.
    """
    table = keyed.table
    row_keys = _row_keys(configuration, table)
    access = access_of(configuration).patient()
    for shard in table.shards:
        require_all_answer(access, shard, f"reading {table.target}")
        for url in access.shards[shard]:
            _wait_for_inserts(access, url)
        url = _complete_replica(access, shard, table)
        with access.connect(url) as server:
            facts = describe_table(server, table.database, table.table)
            old = old_parts(server, facts, age_seconds)
            settings = seeing_all_but(server, facts, old)
            stream = rows_but(server, facts, row_keys.columns, old, settings)
            for native in blocks(stream, row_keys.columns, CHUNK_ROWS):
                keys, owners = row_keys.of_stored(memoryview(native))
                yield np.ascontiguousarray(keys), np.ascontiguousarray(owners)


def key_columns_of(configuration: Configuration, table: TableSpec) -> tuple[str, ...]:
    """The columns that keys and owners are made of."""
    return _row_keys(configuration, table).columns


def _row_keys(configuration: Configuration, table: TableSpec) -> RowKeys:
    return RowKeys(table, decoder_of(table, registry_access(configuration)).columns)


def _wait_for_inserts(access: ClickHouseAccess, url: str) -> None:
    """Wait until the inserts have ended that run on a server now: what they store is to be read.
    Those that begin meanwhile have their claims.

    :raises StillRunningError: they take too long.
    """
    deadline = time.monotonic() + _ENDED_SECONDS
    with access.connect(url) as server:
        running = set(running_query_ids(server, QUERY_ID_PREFIX))
        while running and (running := running & set(running_query_ids(server, QUERY_ID_PREFIX))):
            if time.monotonic() > deadline:
                raise StillRunningError(
                    f"{url} still runs the insert {sorted(running)[0]}",
                    "Claims are made from the tables when it has ended.",
                )
            time.sleep(_LOOK_SECONDS)


def _complete_replica(access: ClickHouseAccess, shard: str, table: TableSpec) -> str:
    """The first replica that lacks nothing that any of them has.

    :raises TransientError: none of them; what the last one lacks.
    """
    *first, last = access.shards[shard]
    for url in first:
        try:
            require_fetched(access, url, table)
            return url
        except TransientError:
            continue
    require_fetched(access, last, table)
    return last
