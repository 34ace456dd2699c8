"""How full a table is: its deduplication window, by insert counters that only grow, and its parts.

The difference of two insert counters bounds from above how many entries all writers added between
them (budget, H7). An insert counter that shrank says nothing: the caller treats it as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.clickhouse.http import Server
from sluice.clickhouse.password import REFUSED_CODES
from sluice.clickhouse.reactions import TerminalServerError
from sluice.clickhouse.schema import TableFacts, merge_tree_defaults, table_settings
from sluice.core.server_runs import server_run


def tables_with_windows(facts: TableFacts) -> Iterator[tuple[str, TableFacts]]:
    """A table and what the views behind it write to (H13), each once; with the name that a target
    shard has for it (`TargetShard.target`)."""
    yield "", facts
    seen = set[str]()
    for dependent in facts.all_dependents():
        if dependent.target.target not in seen:
            seen.add(dependent.target.target)
            yield dependent.target.target, dependent.target


def read_server_run(server: Server) -> str:
    """Which process serves this server now; see `core.server_runs`.

    A server draws new uuids for the tables of its database `system` at each start; the embedded
    engine does so for the database itself [measured; for servers as their source says].
    """
    rows = server.query(
        "SELECT (SELECT toString(max(uuid)) FROM system.databases WHERE name = 'system') AS base, "
        "(SELECT toString(max(uuid)) FROM system.tables WHERE database = 'system' "
        "AND name = 'one') AS one, toUnixTimestamp64Milli(now64(3)) AS now, uptime() AS up"
    )
    row = rows[0]
    return server_run(f"{row['base']}/{row['one']}", int(row["now"]) - 1000 * int(row["up"]))


def read_insert_counter(server: Server, facts: TableFacts) -> int:
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
    parts were dropped, their files removed, the server restarted, and the insert counter grew past
    its old value again.

    :raises ServerError: transient without a session to ZooKeeper; terminal where Sluice's
        user may not read system.zookeeper.
    """
    if facts.replicated:
        return _numbers_handed_out(server, facts)
    rows = server.query(
        "SELECT max(max_block_number) AS insert_counter, count() AS parts FROM system.parts "
        "WHERE database = {database:String} AND table = {table:String}",
        {"database": facts.database, "table": facts.table},
    )
    return int(rows[0]["insert_counter"]) if int(rows[0]["parts"]) else 0


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


_SETTING = "parts_to_delay_insert"


def crowding(server: Server, facts: TableFacts) -> float:
    """Active parts of the fullest ClickHouse partition, as a share of `parts_to_delay_insert`:
    from 1.0 on the server delays inserts. Over the table and its views' targets, the largest.

    :raises ServerError: terminal or transient.
    """
    tables = [facts, *(dependent.target for dependent in facts.all_dependents())]
    return max(_crowding(server, table) for table in tables)


def _crowding(server: Server, facts: TableFacts) -> float:
    if not facts.engine.endswith("MergeTree"):
        return 0.0
    own = table_settings(facts.engine_full)
    if _SETTING not in own:
        own = merge_tree_defaults(server, facts.replicated, [_SETTING])
    limit = int(own.get(_SETTING, 0))
    if limit < 1:
        return 0.0  # this server never delays
    rows = server.query(
        "SELECT max(parts) AS parts FROM (SELECT count() AS parts FROM system.parts "
        "WHERE database = {database:String} AND table = {table:String} AND active "
        "GROUP BY partition)",
        {"database": facts.database, "table": facts.table},
    )
    return int(rows[0]["parts"]) / limit
