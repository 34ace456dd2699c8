"""How full a table is: its deduplication window, by insert counters that only grow, and its parts.

The difference of two insert counters bounds from above how many entries all writers added between
them (budget, H7). An insert counter that shrank, or grew by more than any window keeps, says
nothing: the caller treats it as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sluice.clickhouse.http import Server
from sluice.clickhouse.password import REFUSED_CODES
from sluice.clickhouse.reactions import TerminalServerError
from sluice.clickhouse.schema import TableFacts, table_setting
from sluice.clickhouse.system import said_of_table
from sluice.clickhouse.vanishing import tokens_went_until_ms
from sluice.core.budget import HISTORY_GONE, WindowState, why_block_forgotten
from sluice.core.errors import TerminalError, TransientError
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
    Survives whatever becomes of the parts.
    FORGET PARTITION removes the parent of a ClickHouse partition's numbers, with all that it
    counted. ZooKeeper counts such removals, too: each adds HISTORY_GONE, since nobody knows then
    how many entries came meanwhile.

    A part that was inserted asynchronously has one number, and an entry for each of the inserts
    that it was made of. Servers that keep these among all others (`deduplication_hashes`, the
    default from 26.6) have them counted by ZooKeeper, too, and that is added: it overcounts
    only. With a ClickHouse Keeper an entry counts once there, with ZooKeeper twice, since there an
    insert first tries, in one transaction, whether its entry can be created. (So it would with the
    nodes of older servers, which need not be counted: each part has one.)

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
    select = "SELECT max(max_block_number) AS insert_counter, count() AS parts FROM system.parts"
    rows = said_of_table(server, select, facts.database, facts.table)
    return int(rows[0]["insert_counter"]) if int(rows[0]["parts"]) else 0


def _numbers_handed_out(server: Server, facts: TableFacts) -> int:
    numbers, counted, now = 0, -1, block_numbers(server, facts)
    # One that is forgotten while the numbers are summed up may be in the sum or not.
    while int(now["forgotten"]) != counted:
        # Summed there, since a profile may limit how many rows are shown.
        row = _shown(server, facts, f"sum({_MADE}) AS numbers", "/block_numbers")
        numbers = int(row["numbers"])
        counted, now = int(now["forgotten"]), block_numbers(server, facts)
    return counted * HISTORY_GONE + numbers + int(now["hashes"])


#: Of a ZooKeeper node: how many children it was ever given, and how many were removed.
_MADE = "intDiv(toInt64(cversion) + toInt64(numChildren) + 1, 2)"
_REMOVED = "intDiv(toInt64(cversion) - toInt64(numChildren), 2)"
#: Below a table's path, and what is asked of the nodes there.
_QUORUM, _GIVEN_UP = "/quorum", "AND name = 'failed_parts'"


def block_numbers(server: Server, facts: TableFacts) -> dict[str, Any]:
    """ZooKeeper's node below which the block numbers of a Replicated table are counted. Each that
    lives has one; where nodes cannot be seen, `system.zookeeper` has no rows, and no error.

    :returns: how many ClickHouse partitions were ever `forgotten`; and how many `hashes` the window
        was ever given, where it is not counted by block numbers alone.
    :raises TerminalError: the table is in an auxiliary ensemble, and `system.zookeeper` shows the
        server's own, where another table may have the path.
    :raises TransientError: the server does not show it.
    """
    if facts.zookeeper_name:
        raise TerminalError(
            f"{facts.target} on {facts.url} is in the auxiliary ensemble {facts.zookeeper_name} of "
            "ZooKeeper: its deduplication window cannot be observed",
            "Load into a table whose path is in the server's own ensemble.",
        )
    what = (
        f"sumIf({_REMOVED}, name = 'block_numbers') AS forgotten, "
        f"sumIf({_MADE}, name = 'deduplication_hashes') AS hashes"
    )
    there = "HAVING countIf(name = 'block_numbers') > 0"
    return _shown(server, facts, what, "", there)


def _shown(
    server: Server, facts: TableFacts, what: str, below: str, named: str = ""
) -> dict[str, Any]:
    """What ZooKeeper shows of the children of a node.

    :param what: of which there is one row.
    :param below: under the table's path.
    """
    try:
        rows = server.query(
            f"SELECT {what} FROM system.zookeeper WHERE path = {{path:String}} {named}",
            {"path": f"{facts.zookeeper_path}{below}"},
        )
    except TerminalServerError as error:
        if error.code not in REFUSED_CODES:
            error.hint = "GRANT SELECT ON system.zookeeper to Sluice's user."
        raise
    if not rows:
        raise TransientError(
            f"{facts.target} on {facts.url}: ZooKeeper shows no {facts.zookeeper_path}"
            f"{below or '/block_numbers'}, so its deduplication window cannot be observed",
            "See system.replicas there. A table in an auxiliary ensemble cannot be loaded.",
        )
    return rows[0]


def read_quorums_given_up(server: Server, facts: TableFacts) -> int:
    """How many parts were ever given up of a table, and of those that views behind it write to,
    since too few replicas had them for their quorum.

    In one transaction a server lists such a part below a node of ZooKeeper, ends the wait for its
    quorum and takes what the window knows of its block. Nothing takes a part from the list again,
    and each that comes raises the node's child version [as sources from 18.16 to 26.9 say].

    :raises ServerError: as `read_insert_counter` does.
    """
    return sum(
        int(_shown(server, each, "toInt64(cversion) AS given_up", _QUORUM, _GIVEN_UP)["given_up"])
        for _, each in tables_with_windows(facts)
        if each.replicated
    )


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
    limit = table_setting(server, facts, "parts_to_delay_insert")
    if limit < 1:
        return 0.0  # this server never delays
    select = "SELECT max(parts) AS parts FROM (SELECT count() AS parts FROM system.parts"
    active = "AND active GROUP BY partition)"
    rows = said_of_table(server, select, facts.database, facts.table, active)
    return int(rows[0]["parts"]) / limit


def why_window_forgot(
    server: Server, facts: TableFacts, insert_counter: int, since_ms: int, at_ms: int
) -> str:
    """Why the window of a table may not know a block now that was inserted since; "" if it surely
    does (R10).

    :param insert_counter, since_ms: before the block could first be inserted.
    :param at_ms: now.
    :raises ServerError: terminal or transient.
    """
    return why_block_forgotten(
        WindowState(facts.window_blocks, read_insert_counter(server, facts), facts.target),
        insert_counter,
        since_ms,
        at_ms,
        seconds=facts.window_seconds,
        lost_until_ms=tokens_went_until_ms(facts),
    )
