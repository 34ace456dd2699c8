"""The deduplication keys of rows that a table has, all of them or those that came lately."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.insert import QUERY_ID_PREFIX
from sluice.clickhouse.probe import running_query_ids
from sluice.clickhouse.recent import old_parts, rows_but, seeing_all_but
from sluice.clickhouse.schema import describe_table
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
