"""What several ask a server's system tables: of one table, and of a node of ZooKeeper."""

from __future__ import annotations

from typing import Any

from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import Parameter


def said_of_table(
    server: Server, select: str, database: str, table: str, more: str = "", **parameters: Parameter
) -> list[dict[str, Any]]:
    """The rows of a system table that are about one table.

    :param select: SELECT … FROM system.…, which has the columns database and table, or is
        `system.tables`.
    :param more: how the query goes on, with these parameters: AND …, or ORDER BY …
    :raises ServerError: terminal or transient.
    """
    key = "name" if select.endswith(" system.tables") else "table"
    where = f"WHERE database = {{database:String}} AND {key} = {{table:String}}"
    named = {"database": database, "table": table, **parameters}
    return server.query(f"{select} {where} {more}", named)


def children(server: Server, path: str) -> list[str]:
    """The names of what is below a node of ZooKeeper, sorted.

    :raises ServerError: transient without a session with ZooKeeper; terminal where Sluice's
        user may not read system.zookeeper.
    """
    rows = server.query(
        "SELECT name FROM system.zookeeper WHERE path = {path:String} ORDER BY name", {"path": path}
    )
    return [str(row["name"]) for row in rows]
