"""The structure of tables, read cheaply: one query for all tables of a server.

`sluice.clickhouse.schema` reads everything that matters about a table, in several queries for
each; this tells whether there is a reason to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import literal
from sluice.core.text import Column


@dataclass(frozen=True, slots=True)
class Structure:
    """What a table says about its rows.

    :param columns: in the server's order.
    """

    columns: tuple[Column, ...]
    partition_key: str
    sorting_key: str


def read_structures(
    server: Server, tables: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], Structure]:
    """The structure of these tables, (database, table); those that do not exist are missing.

    9 ms on 26.9 and 2.5 ms on 18.16 for two tables [measured].

    :raises ServerError: terminal or transient.
    """
    wanted = sorted(set(tables))
    if not wanted:
        return {}
    # No alias may be called like a column that WHERE looks at.
    rows = server.query(
        "SELECT 'column' AS what, database AS in_database, table AS of_table, "
        "name AS column_name, type AS column_type, default_kind AS kind, "
        f"default_expression AS expression FROM system.columns WHERE {_one_of(wanted, 'table')} "
        "UNION ALL SELECT 'table' AS what, database AS in_database, name AS of_table, "
        "'' AS column_name, '' AS column_type, partition_key AS kind, "
        f"sorting_key AS expression FROM system.tables WHERE {_one_of(wanted, 'name')}"
    )
    columns: dict[tuple[str, str], list[Column]] = {}
    keys: dict[tuple[str, str], tuple[str, str]] = {}
    for row in rows:
        where = (str(row["in_database"]), str(row["of_table"]))
        if row["what"] == "table":
            keys[where] = (str(row["kind"]), str(row["expression"]))
        else:
            # A kind that this version does not know is a difference, and read as an error later.
            column = Column(row["column_name"], row["column_type"], row["kind"], row["expression"])
            columns.setdefault(where, []).append(column)
    return {
        where: Structure(tuple(columns.get(where, ())), *found) for where, found in keys.items()
    }


def _one_of(tables: Iterable[tuple[str, str]], name: str) -> str:
    terms = [
        f"(database = {literal(database)} AND {name} = {literal(table)})"
        for database, table in tables
    ]
    return f"({' OR '.join(terms)})"
