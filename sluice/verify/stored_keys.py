"""The deduplication keys of rows that a table has, all of them or those that came lately.

What came lately is told by parts: each is younger than what is merged in it. So more is read than
came: whatever else stands in a part with it. Nothing that came is left out, but for parts that
somebody attached, which may be as old as they were when they were detached.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server, pieces
from sluice.clickhouse.insert import QUERY_ID_PREFIX
from sluice.clickhouse.probe import running_query_ids
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.sql import identifier
from sluice.clickhouse.vanishing import CannotTellError, not_in, require_all_rows, seeing_all
from sluice.core.errors import TransientError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.native_stream import blocks
from sluice.decode.keys.hashing import RowKeys
from sluice.driver.probing import StillRunningError, require_all_answer, require_fetched

#: Rows in memory at once; a server's block more at most.
CHUNK_ROWS = 200_000
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
    :raises TerminalError: a server does not show all rows; or it has them in a type that cannot be
        read in chunks.
    """
    for shard in table.shards:
        require_all_answer(access, shard, f"reading {table.target}")
        for url in access.shards[shard]:
            _wait_for_inserts(access, url)
        with access.connect(_complete_replica(access, shard, table)) as server:
            facts = describe_table(server, table.database, table.table)
            old = [] if age_seconds is None else old_parts(server, facts, age_seconds)
            settings = seeing_all_but(server, facts, old)
            stream = rows_but(server, facts, row_keys.columns, old, settings)
            for native in blocks(stream, row_keys.columns, CHUNK_ROWS):
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
    rows = server.query(
        "SELECT name FROM system.parts "
        "WHERE database = {database:String} AND table = {table:String} AND active "
        "AND toUnixTimestamp(modification_time) < toUnixTimestamp(now()) - {age:UInt64}",
        {
            "database": facts.database,
            "table": facts.table,
            "age": age_seconds + _MARGIN_SECONDS,
        },
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
    old: Sequence[str],
    settings: Mapping[str, str],
) -> Iterator[bytes]:
    """All rows that are not in these parts, as a stream of Native blocks, piece by piece.

    A part that was merged with others meanwhile is another one, and is read.

    :param settings: see `seeing_all_but`.
    :raises ServerError: terminal or transient.
    """
    where = f"WHERE {not_in(old)}" if old else ""
    query = (
        f"SELECT {', '.join(map(identifier, columns))} "
        f"FROM {{database:Identifier}}.{{table:Identifier}} {where} FORMAT Native"
    )
    names = {"database": facts.database, "table": facts.table}
    return pieces(server, query, names, settings, _TIMEOUT_SECONDS)
