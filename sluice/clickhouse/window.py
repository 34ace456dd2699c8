"""How much of a table's deduplication window was used: marks that only grow.

The difference of two marks bounds from above how many entries all writers added between
them (budget B1). A mark that shrank says nothing: the caller treats it as unknown.
"""

from __future__ import annotations

from sluice.clickhouse.http import Server
from sluice.clickhouse.password import REFUSED_CODES
from sluice.clickhouse.reactions import TerminalServerError
from sluice.clickhouse.schema import TableFacts


def narrowest_window(facts: TableFacts) -> tuple[TableFacts, int | None]:
    """Over a table and its views' targets (C7): the one whose window keeps the fewest entries,
    and the smallest number of seconds."""
    tables = [facts, *(dependent.target for dependent in facts.all_dependents())]
    seconds = [t.window_seconds for t in tables if t.window_seconds is not None]
    return min(tables, key=lambda table: table.window_blocks), min(seconds, default=None)


def window_mark(server: Server, facts: TableFacts) -> int:
    """A number that grows by at least one with each entry that any writer adds.

    Replicated: the block numbers ever handed out, summed over ClickHouse partitions, as
    ZooKeeper counts them: a number is a child that is created and removed again, and the
    parent's child version counts both. Each new part takes one, on whichever replica; a
    deduplicated one takes none; DROP PARTITION and mutations take one too, merges none.
    Survives whatever becomes of the parts. (The nodes of the window itself count double:
    an insert first tries, in one transaction, whether its entry can be created.)

    Plain MergeTree: the largest block number of all parts, active or not. One counter for
    the whole table numbers the parts of every insert, deduplicated ones included, so it
    overcounts only. DROP PARTITION or TRUNCATE can shrink it. After a restart the server
    goes on from the largest number that it finds, so entries can hide only if the newest
    parts were dropped, their files removed, the server restarted, and the mark grew past
    its old value again.

    :raises ServerError: transient without a session to ZooKeeper; terminal where Sluice's
        user may not read system.zookeeper.
    """
    if facts.replicated:
        return _numbers_handed_out(server, facts)
    rows = server.query(
        "SELECT max(max_block_number) AS mark, count() AS parts FROM system.parts "
        "WHERE database = {database:String} AND table = {table:String}",
        {"database": facts.database, "table": facts.table},
    )
    return int(rows[0]["mark"]) if int(rows[0]["parts"]) else 0


def _numbers_handed_out(server: Server, facts: TableFacts) -> int:
    try:
        rows = server.query(
            "SELECT toInt64(cversion) AS changes, toInt64(numChildren) AS children "
            "FROM system.zookeeper WHERE path = {path:String}",
            {"path": f"{facts.zookeeper_path}/block_numbers"},
        )
    except TerminalServerError as error:
        if error.code not in REFUSED_CODES:
            error.hint = "GRANT SELECT ON system.zookeeper to Sluice's user."
        raise
    return sum((int(row["changes"]) + int(row["children"]) + 1) // 2 for row in rows)
