"""What a probe looks at before it loads the rest of a range (R11)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import other_query_id
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.sql import OF_RANGE, literal, range_parameters
from sluice.clickhouse.system import children, said_of_table
from sluice.clickhouse.vanishing import CannotTellError
from sluice.clickhouse.window import block_numbers
from sluice.core.load_spec import SOURCE
from sluice.core.ranges import Range
from sluice.core.tokens import source_number

PRESENT_TIMEOUT_SECONDS = 120.0
SECOND_LOOK_SECONDS = 0.3
#: What a replica may take to read the log, and to fetch what it has queued.
SYNC_SECONDS = 5.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PresentOffsets:
    """Offsets [begin, end) that are all present, each with the same number of rows.

    :param rows: rows in the table for each of these offsets.
    :param rows_distinct: of which different in `_row`; if fewer than `rows`, some are doubled.
    """

    begin: int
    end: int
    rows: int
    rows_distinct: int

    @property
    def doubled(self) -> bool:
        return self.rows > self.rows_distinct


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Rows [first, beyond) of a message that are in the table.

    :param doubled: some of them more than once.
    """

    offset: int
    first: int
    beyond: int
    doubled: bool


def running_query_ids(server: Server, prefix: str) -> list[str]:
    """Query ids with this prefix that run on this server now, sorted.

    :raises TerminalServerError: the server does not list this very question under its query id:
        something before it replaces query ids.
    """
    own = f"look-of-sluice-{os.urandom(8).hex()}"
    rows = server.query(
        "SELECT DISTINCT query_id FROM system.processes WHERE query_id = {own:String} "
        "OR substring(query_id, 1, {length:UInt32}) = {prefix:String} ORDER BY query_id",
        {"own": own, "prefix": prefix, "length": len(prefix.encode())},
        {"query_id": own},
    )
    running = {str(row["query_id"]) for row in rows}
    if own not in running:
        raise other_query_id(server.url, "the look at what runs", own, "")
    return sorted(running - {own})


def why_not_in_sync(server: Server, facts: TableFacts, *, others_may_be_away: bool = False) -> str:
    """What this server's replica lacks of all that any replica had when this was called, in one
    line; "": nothing. Ask every replica of the shard. What is inserted meanwhile does not matter:
    under a steady load there is hardly a moment in which a replica lacks nothing at all.

    :param others_may_be_away: it is not asked whether the others have a session. What they have
        stored stands in the replication log all the same, and what only they have is queued here:
        enough for who wants to know what rows there are, and not what may still be inserted.

    1. Where does the replication log end? 2. The replica reads it to there. 3. What it has queued
    to fetch then is all that it lacks of that. 4. It fetches that. Each of it may take
    SYNC_SECONDS.
    """
    if not facts.replicated:
        return ""
    log_end = _log_end(server, facts)

    def behind() -> str:
        return _why_behind(server, facts, log_end, others_may_be_away=others_may_be_away)

    why = _soon(behind)
    if not why:
        # A replica moves its log pointer before the entry counts as queued.
        time.sleep(SECOND_LOOK_SECONDS)
        queued = _queued_inserts(server, facts)
        why = _soon(lambda: _why_not_fetched(server, facts, queued))
    # It has to be the same replica with the same session to the end.
    return why or behind()


def _soon(look: Callable[[], str]) -> str:
    """What a look says when it says nothing any more, or after a while."""
    until = time.monotonic() + SYNC_SECONDS
    while (why := look()) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    return why


def _why_behind(
    server: Server, facts: TableFacts, log_end: int, *, others_may_be_away: bool
) -> str:
    """Why a replica cannot be believed, or has not read the replication log to there."""
    where = f"{facts.target} on {server.url}"
    rows = said_of_table(server, "SELECT * FROM system.replicas", facts.database, facts.table)
    if not rows:
        return f"{where} is not in system.replicas"
    row = rows[0]
    active, total = int(row["active_replicas"]), int(row["total_replicas"])
    is_alone = active < total and not others_may_be_away
    checks = (
        (bool(row["is_readonly"]), "is read-only"),
        (bool(row["is_session_expired"]), "has lost its ZooKeeper session"),
        (is_alone, f"has {active} of {total} replicas active{_inactive(server, row)}"),
        (int(row["parts_to_check"]) > 0, "has parts to check"),
        (int(row["log_pointer"]) < log_end, "has not read the replication log to its end"),
    )
    return next((f"{where} {why}" for fails, why in checks if fails), "")


def _queued_inserts(server: Server, facts: TableFacts) -> frozenset[str]:
    """The names of the queue's entries of parts that others have inserted."""
    rows = said_of_table(
        server,
        "SELECT node_name FROM system.replication_queue",
        *(facts.database, facts.table),
        "AND type IN ('GET_PART', 'ATTACH_PART', 'REPLACE_RANGE')",
    )
    return frozenset(str(row["node_name"]) for row in rows)


def _why_not_fetched(server: Server, facts: TableFacts, queued: frozenset[str]) -> str:
    left = len(queued & _queued_inserts(server, facts))
    where = f"{facts.target} on {server.url}"
    return f"{where} waits for {left} inserted parts of other replicas" if left else ""


def _inactive(server: Server, row: Mapping[str, Any]) -> str:
    """Names of the replicas without a session with ZooKeeper, for a message."""
    if int(row["active_replicas"]) >= int(row["total_replicas"]):
        return ""
    path = f"{row['zookeeper_path']}/replicas"
    names = children(server, path)
    away = [name for name in names if "is_active" not in children(server, f"{path}/{name}")]
    return f", without {', '.join(away)}" if away else ""


def _log_end(server: Server, facts: TableFacts) -> int:
    """The number after the last entry of the replication log, 0 for an empty log."""
    block_numbers(server, facts)  # a log that cannot be seen looks empty
    rows = server.query(
        "SELECT max(name) AS last FROM system.zookeeper WHERE path = {path:String}",
        {"path": f"{facts.zookeeper_path}/log"},
    )
    last = str(rows[0]["last"]) if rows else ""
    return int(last.removeprefix("log-")) + 1 if last.startswith("log-") else 0


def present_offsets(
    server: Server,
    facts: TableFacts,
    block_range: Range,
    source: str,
    settings: Mapping[str, str] | None = None,
) -> list[PresentOffsets]:
    """Which offsets of a range one loader has put into the table, compressed on the server.

    Reads the lineage columns. Without a column `_row`, a second row of an offset counts
    as doubled.

    :param source: of the rows, as `core.tokens.row_source` says it.
    :param settings: see `vanishing.seeing_all`.
    :returns: sorted, without overlap; what lies between is missing.
    :raises CannotTellError: rows of these offsets do not say who loaded them.
    """
    where = range_parameters(facts.database, facts.table, block_range)
    nobodys = server.query(_NAMELESS.replace("SOURCE", source_literal(facts, "")), where, settings)
    if int(nobodys[0]["n"]):
        raise CannotTellError(
            f"{facts.target} on {server.url} has {nobodys[0]['n']} rows of offsets "
            f"[{block_range.begin}, {block_range.end}) of {block_range.source} whose column "
            f"{SOURCE} is empty, as that of rows from before it was added: nobody can tell who "
            "loaded them"
        )
    lineage: Collection[str] = {column.name for column in facts.columns}
    row_column = "toUInt64(_row)" if "_row" in lineage else "toUInt64(0)"
    rows = server.query(
        _PRESENT.replace("ROW", row_column).replace("SOURCE", source_literal(facts, source)),
        where,
        settings,
        PRESENT_TIMEOUT_SECONDS,
    )
    return [
        PresentOffsets(
            int(row["first"]), int(row["last"]) + 1, int(row["found"]), int(row["different"])
        )
        for row in rows
    ]


def stored_rows(
    server: Server,
    facts: TableFacts,
    block_range: Range,
    source: str,
    settings: Mapping[str, str] | None = None,
) -> list[StoredRun]:
    """Which rows of the messages of a range one loader has put into the table. Call it after
    `present_offsets`, which sees that all rows say who loaded them.

    :param facts: of a table with a column `_row`.
    :returns: sorted by offset and row.
    """
    rows = server.query(
        _STORED.replace("SOURCE", source_literal(facts, source)),
        range_parameters(facts.database, facts.table, block_range),
        settings,
        PRESENT_TIMEOUT_SECONDS,
    )
    return [
        StoredRun(int(r["o"]), int(r["first"]), int(r["last"]) + 1, int(r["most"]) > 1)
        for r in rows
    ]


def rows_by_partition(
    server: Server,
    facts: TableFacts,
    block_range: Range,
    source: str,
    settings: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """How many rows of a range one loader has in each ClickHouse partition, by its id.

    :param source: of the rows, as `core.tokens.row_source` says it.
    """
    rows = server.query(
        _BY_PARTITION.replace("SOURCE", source_literal(facts, source)),
        range_parameters(facts.database, facts.table, block_range),
        settings,
        PRESENT_TIMEOUT_SECONDS,
    )
    return {str(row["place"]): int(row["n"]) for row in rows}


def source_literal(facts: TableFacts, source: str) -> str:
    """A value of the column `_source` of this table; "" is what says nothing."""
    types = {column.name: column.type for column in facts.columns}
    if types.get(SOURCE) == "UInt64":
        return literal(source_number(source) if source else 0)
    return literal(source)


_NAMELESS = f"SELECT count() AS n {OF_RANGE} AND _source = SOURCE"

# A part's name begins with the id of its ClickHouse partition.
_BY_PARTITION = f"""
SELECT substring(_part, 1, position(_part, '_') - 1) AS place, count() AS n
{OF_RANGE} AND _source = SOURCE
GROUP BY place
"""

# Inside out: rows of each (offset, _row); rows of each offset; offsets with equal counts
# in one sorted array; an offset minus its place in that array is constant in a run without
# gaps. Works without window functions, which 18.16 does not have.
_PRESENT = f"""
SELECT min(o) AS first, max(o) AS last, found, different
FROM (
    SELECT found, different, o, toInt64(o) - toInt64(place) AS run
    FROM (
        SELECT found, different, arraySort(groupArray(o)) AS offsets
        FROM (
            SELECT o, sum(n) AS found, count() AS different
            FROM (
                SELECT toUInt64(_offset) AS o, ROW AS r, count() AS n
                {OF_RANGE} AND _source = SOURCE
                GROUP BY o, r
            )
            GROUP BY o
        )
        GROUP BY found, different
    )
    ARRAY JOIN offsets AS o, arrayEnumerate(offsets) AS place
)
GROUP BY found, different, run
ORDER BY first
"""

# Inside out: how often each (offset, _row) is there; the rows of each offset in one sorted array;
# runs of rows without gaps, as above.
_STORED = f"""
SELECT o, min(r) AS first, max(r) AS last, max(most) AS most
FROM (
    SELECT o, most, r, toInt64(r) - toInt64(place) AS run
    FROM (
        SELECT o, max(n) AS most, arraySort(groupArray(r)) AS found
        FROM (
            SELECT toUInt64(_offset) AS o, toUInt64(_row) AS r, count() AS n
            {OF_RANGE} AND _source = SOURCE
            GROUP BY o, r
        )
        GROUP BY o
    )
    ARRAY JOIN found AS r, arrayEnumerate(found) AS place
)
GROUP BY o, run
ORDER BY o, first
"""
