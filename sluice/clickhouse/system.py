"""What several ask a server's system tables: of one table, and of a node of ZooKeeper."""

from __future__ import annotations

from typing import Any

from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import Parameter


def said_of_table(
    server: Server, select: str, database: str, table: str, more: str = "", **parameters: Parameter
) -> list[dict[str, Any]]:
    """The rows of a system table that are about one table.

    :param select: SELECT … FROM system.…, which has the columns database and table.
    :param more: how the query goes on, with these parameters: AND …, or ORDER BY …
    :raises ServerError: terminal or transient.
    """
    where = "WHERE database = {database:String} AND table = {table:String}"
    named = {"database": database, "table": table, **parameters}
    return server.query(f"{select} {where} {more}", named)


def table_row(
    server: Server, database: str, table: str, columns: str = "*"
) -> dict[str, Any] | None:
    """What `system.tables` says of a table or view, None where it shows none.

    :raises ServerError: terminal or transient.
    """
    rows = server.query(
        f"SELECT {columns} FROM system.tables "
        "WHERE database = {database:String} AND name = {table:String}",
        {"database": database, "table": table},
    )
    return rows[0] if rows else None


def nodes_made(server: Server, path: str) -> list[tuple[str, int]]:
    """What is below a node of ZooKeeper, with the transaction that made each: no other ensemble has
    the same. Sorted; raises as `children` does.
    """
    rows = server.query(
        "SELECT name, czxid FROM system.zookeeper WHERE path = {path:String} ORDER BY name",
        {"path": path},
    )
    return [(str(row["name"]), int(row["czxid"])) for row in rows]


def children(server: Server, path: str) -> list[str]:
    """The names of what is below a node of ZooKeeper, sorted.

    :raises ServerError: transient without a session with ZooKeeper; terminal where Sluice's
        user may not read system.zookeeper.
    """
    rows = server.query(
        "SELECT name FROM system.zookeeper WHERE path = {path:String} ORDER BY name", {"path": path}
    )
    return [str(row["name"]) for row in rows]
