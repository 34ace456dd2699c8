"""The deduplication keys of rows that a table has, all of them or those that came lately.

What came lately is told by parts: each is younger than what is merged in it. So more is read than
came: whatever else stands in a part with it. Nothing that came is left out, but for parts that
somebody attached, which may be as old as they were when they were detached.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server, pieces
from sluice.clickhouse.insert import QUERY_ID_PREFIX
from sluice.clickhouse.probe import running_query_ids
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.sql import identifier
from sluice.clickhouse.system import said_of_table
from sluice.clickhouse.vanishing import CannotTellError, not_in, require_all_rows, seeing_all
from sluice.core.errors import TransientError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.native import column_head, read_header
from sluice.decode.keys.hashing import RowKeys
from sluice.driver.probing import (
    StillRunningError,
    require_all_answer,
    require_fetched,
    require_one_table,
)
from sluice.producer.wire import varint

#: Rows in memory at once; a server's block more at most.
CHUNK_ROWS = 200_000
#: Of a constant that is the last column of each block, so that one sees where the block ends,
#: whatever its other columns are. No value says the name of a column that was drawn just before.
_LAST_TYPE = "UInt8"
#: An insert that was begun before a look may run on for so long.
_ENDED_SECONDS = 60.0
_LOOK_SECONDS = 0.5


def stored_keys(
    access: ClickHouseAccess, table: TableSpec, row_keys: RowKeys, age_seconds: int | None = None
) -> Iterator[tuple[Keys, Owners]]:
    """Keys and owners of the rows in all parts that are younger, chunk by chunk.

    :param row_keys: of the table.
    :param age_seconds: None: of all rows.
    :raises TransientError: a replica does not answer, or is behind; or an insert still runs.
    :raises TerminalError: a server does not show all rows.
    """
    for shard in table.shards:
        require_all_answer(access, shard, f"reading {table.target}")
        require_one_table(access, access.shards[shard], table)
        for url in access.shards[shard]:
            _wait_for_inserts(access, url)
        with access.connect(_complete_replica(access, shard, table)) as server:
            facts = describe_table(server, table.database, table.table)
            old = [] if age_seconds is None else old_parts(server, facts, age_seconds)
            settings = seeing_all_but(server, facts, old)
            columns, last = row_keys.columns, f"_sluice_{secrets.token_hex(16)}"
            stream = rows_but(server, facts, columns, last, old, settings)
            for native in blocks(stream, columns, last, CHUNK_ROWS):
                keys, owners = row_keys.of_stored(memoryview(native))
                yield np.ascontiguousarray(keys), np.ascontiguousarray(owners)


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


#: A server says to the second when a part came; the disk may say it a little differently.
_MARGIN_SECONDS = 10
_TIMEOUT_SECONDS = 600.0
#: Statements that are longer are only read by a server that is told so.
_QUERY_BYTES = 200_000


def old_parts(server: Server, facts: TableFacts, age_seconds: int) -> list[str]:
    """The parts that have been as they are for longer, by the server's own clock."""
    rows = said_of_table(
        server,
        "SELECT name FROM system.parts",
        *(facts.database, facts.table),
        "AND active AND toUnixTimestamp(modification_time) < toUnixTimestamp(now()) - {age:UInt64}",
        age=age_seconds + _MARGIN_SECONDS,
    )
    return [str(row["name"]) for row in rows]


def seeing_all_but(server: Server, facts: TableFacts, old: Sequence[str]) -> dict[str, str]:
    """The settings with which every row is shown that is not in these parts; those that somebody
    deleted, too: their events have come.

    :raises CannotTellError: some are hidden.
    """
    settings = seeing_all(server)
    if sum(map(len, old)) + 4 * len(old) > _QUERY_BYTES:
        settings["max_query_size"] = str(1 << 30)
    try:
        require_all_rows(server, facts, settings, old)
    except CannotTellError:
        known = server.query("SELECT 1 FROM system.settings WHERE name = 'apply_deleted_mask'")
        if not known:
            raise
        settings["apply_deleted_mask"] = "0"
        require_all_rows(server, facts, settings, old)
    return settings


def rows_but(
    server: Server,
    facts: TableFacts,
    columns: Sequence[str],
    last: str,
    old: Sequence[str],
    settings: Mapping[str, str],
) -> Iterator[bytes]:
    """All rows that are not in these parts, as a stream of Native blocks, piece by piece.

    A part that was merged with others meanwhile is another one, and is read.

    :param last: the name of one more column, see `blocks`.
    :param settings: see `seeing_all_but`.
    :raises ServerError: terminal or transient.
    """
    where = f"WHERE {not_in(old)}" if old else ""
    query = (
        f"SELECT {', '.join(map(identifier, columns))}, to{_LAST_TYPE}(0) AS {last} "
        f"FROM {{database:Identifier}}.{{table:Identifier}} {where} FORMAT Native"
    )
    names = {"database": facts.database, "table": facts.table}
    return pieces(server, query, names, settings, _TIMEOUT_SECONDS)


#: So much is shown of what is no block.
_SHOWN_BYTES = 500


class BrokenStreamError(TransientError):
    """A stream of rows ended in the middle, or the server said something in it."""

    hint = "It is read again; the server's log says why."


def blocks(
    pieces: Iterable[bytes], columns: Sequence[str], last: str, rows: int
) -> Iterator[bytes]:
    """Whole blocks of a stream of any length, as many together as have so many rows.

    What a server has to say in the middle of it, as when it runs out of memory, is no block of the
    columns that were asked for.

    :param columns: in their order, without the last one.
    :param last: the name of a last column of zeros, which no value has.
    :param rows: fewer only at the end; the last block of them may bring more.
    :raises BrokenStreamError: the stream breaks off, or says something else.
    """
    head = varint(len(columns) + 1), varint(len(columns[0].encode())) + columns[0].encode()
    behind = column_head(last, _LAST_TYPE)
    data, at, found, searched = bytearray(), 0, 0, 0
    for piece in pieces:
        data += piece
        while (place := data.find(behind, searched)) >= 0:
            searched = place
            of_block = _rows_of(data, at, *head)
            end = place + len(behind) + of_block
            if len(data) < end:
                break
            at, found, searched = end, found + of_block, end
            if found >= rows:
                yield bytes(data[:at])
                del data[:at]
                at = found = searched = 0
        else:
            searched = max(at, len(data) - len(behind))
    if len(data) > at:
        _rows_of(data, at, *head)
        raise BrokenStreamError("a stream of rows ends in the middle of a block")
    if found:
        yield bytes(data)


def _rows_of(data: bytearray, at: int, width: bytes, name: bytes) -> int:
    """How many rows the block has that begins here.

    :param width: how many columns it has to have; `name`: that of the first.
    :raises BrokenStreamError: there is none.
    """
    begins = bytes(data[at : at + _SHOWN_BYTES])
    try:
        _, rows, begin = read_header(memoryview(begins))
    except IndexError:
        raise BrokenStreamError("a stream of rows ends in the middle of a block") from None
    if not begins.startswith(width) or not data.startswith(name, at + begin):
        said = begins.decode(errors="replace").strip()
        raise BrokenStreamError(f"in the middle of its rows a server says: {said}")
    return rows
