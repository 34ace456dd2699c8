"""Text of SQL: identifiers and literals, quoted on this side.

Server-side parameters (`param_x`) do not exist on old servers (18.16 answers code 115),
so `{name:Type}` is filled in here, for all servers alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sluice.core.ranges import Range

Parameter = str | int | list[str] | list[int]

#: Of a query: the rows of a range, by their lineage columns; see `range_parameters`.
OF_RANGE = (
    "FROM {database:Identifier}.{table:Identifier} WHERE _topic = {topic:String} "
    "AND _partition = {partition:UInt32} AND _offset >= {begin:UInt64} AND _offset < {end:UInt64}"
)

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*):([A-Za-z0-9_()]+)\}")
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\0": "\\0"})


def identifier(name: str) -> str:
    """A name in backquotes."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def split_name(target: str) -> tuple[str, str]:
    """Database and table of "database.table", as texts and messages name a table."""
    database, _, table = target.partition(".")
    return database, table


def qualified(database: str, table: str) -> str:
    """`database`.`table`"""
    return f"{identifier(database)}.{identifier(table)}"


def literal(value: Parameter) -> str:
    """A value as a ClickHouse literal."""
    if isinstance(value, str):
        return f"'{value.translate(_ESCAPES)}'"
    if isinstance(value, list):
        return "[" + ", ".join(literal(each) for each in value) + "]"
    return str(int(value))


def range_parameters(database: str, table: str, block_range: Range) -> dict[str, Parameter]:
    """What `OF_RANGE` is told of a table and of the rows that are sought in it."""
    source = block_range.source
    return {
        **{"database": database, "table": table, "topic": source.topic},
        **{"partition": source.partition, "begin": block_range.begin, "end": block_range.end},
    }


def render(sql: str, parameters: Mapping[str, Parameter]) -> str:
    """Fill in `{name:Type}`; the type Identifier quotes a name, every other a value.

    :raises KeyError: a placeholder without a parameter.
    """

    def replacement(match: re.Match[str]) -> str:
        value = parameters[match.group(1)]
        if match.group(2) == "Identifier":
            return identifier(str(value))
        return literal(value)

    return _PLACEHOLDER.sub(replacement, sql)
