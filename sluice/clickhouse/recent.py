"""Rows that came into a table lately, by its parts: each is younger than what is merged in it.

So more is read than came: whatever else stands in a part with it. Nothing that came is left out,
but for parts that somebody attached, which may be as old as they were when they were detached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sluice.clickhouse.http import Server, pieces
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.sql import identifier
from sluice.clickhouse.vanishing import CannotTellError, not_in, require_all_rows, seeing_all

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
