"""The function that says which shard a row goes to, in ClickHouse SQL.

It is a UInt64, modulo the number of shards: what a Distributed table over them does with the
same sharding key, where all weights are equal and its shards stand in the order of their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, Sharding, TableSpec
from sluice.decode.engine.expressions import (
    READS_NO_CLOCK,
    nondeterministic_functions,
    referenced_columns,
)
from sluice.decode.engine.session import (
    EngineError,
    declared,
    identifier,
    literal,
    run,
    settings_clause,
)

_WHOLE_NUMBER = re.compile(r"U?Int(8|16|32|64|128|256)")
_LOW_CARDINALITY = re.compile(r"LowCardinality\((.*)\)", re.DOTALL)


def sharding_key(sharding: Sharding, columns: Iterable[Column]) -> str:
    """A UInt64 of a row, in ClickHouse SQL.

    :param columns: of the table.
    :raises TerminalError: they have no such column, or one that cannot be divided.
    """
    if sharding.by == "expression":
        # The newline ends a comment that the expression may end with.
        return f"toUInt64({sharding.expression}\n)"
    name = "_offset" if sharding.by == "offset" else sharding.column
    number = f"toUInt64({identifier(name)})"
    type_text = next((column.type for column in columns if column.name == name), None)
    if type_text is None:
        raise TerminalError(
            f"sharding by {sharding.by}: the table has no column {name}",
            "Shard by columns of the table.",
        )
    if sharding.by == "key" and not _is_whole_number(type_text):
        if sharding.stripe != 1:
            raise TerminalError(
                f"sharding by key: stripe divides numbers, and {name} is {type_text}",
                "Leave stripe out: other values are spread by their hash.",
            )
        return f"xxHash64({identifier(name)})"
    return number if sharding.stripe == 1 else f"intDiv({number}, toUInt64({sharding.stripe}))"


def place_of(table: TableSpec) -> str:
    """The place of a row's shard among `table.shards`, in ClickHouse SQL.

    :raises TerminalError: see `sharding_key`.
    """
    assert table.sharding is not None
    return f"{sharding_key(table.sharding, table.columns)} % {len(table.shards)}"


def check_sharding(table: TableSpec, columns: Iterable[str]) -> None:
    """Let the engine compile the function.

    :param columns: of the blocks.
    :raises TerminalError: it would not give each row one shard, always the same.
    """
    sharding = table.sharding
    assert sharding is not None
    expression = sharding.expression or identifier(
        "_offset" if sharding.by == "offset" else sharding.column
    )
    carried = {column.name: column for column in table.columns if column.name in set(columns)}
    used = referenced_columns(expression, table.columns)
    for column in used:
        if column.name not in carried:
            raise TerminalError(
                f"{_of(table)}: it depends on {column.name}, which blocks do not carry",
                "Shard by columns that are inserted.",
            )
    if not used:
        raise TerminalError(
            f"{_of(table)}: {expression} names no column of {table.target}",
            "Shard by columns of the table.",
        )
    key = sharding_key(sharding, table.columns)
    volatile = nondeterministic_functions(expression, table.columns)
    if volatile:
        raise TerminalError(
            f"{_of(table)}: it depends on {', '.join(volatile)}, so a message that is loaded again "
            "could go to another shard",
            "Shard by columns that messages fill, or by a deterministic DEFAULT.",
        )
    found = _type(table, expression, key, carried.values())
    if "Nullable(" in found or found in ("Null", "Nothing"):
        raise TerminalError(
            f"{_of(table)}: {expression} is {found}, and null belongs to no shard",
            'Say where null goes: sharding = { by = "expression", expression = '
            f'"xxHash64(ifNull({expression}, …))" }}.',
        )
    if sharding.by == "expression" and not _is_whole_number(found):
        raise TerminalError(
            f"{_of(table)}: {expression} is {found}, not a whole number",
            f"Hash it, as in xxHash64({expression}).",
        )


def _type(table: TableSpec, expression: str, key: str, columns: Iterable[Column]) -> str:
    """The type of an expression over the columns of a block, compiled as for a block."""
    structure = declared((column.name, column.type) for column in columns)
    settings = settings_of(table)
    nothing = f"null({literal(structure)})"
    # In PARTITION BY, what looks at other rows is refused; without rows no file is written.
    insert = (
        f"INSERT INTO FUNCTION file('/dev/null{{_partition_id}}', Native) PARTITION BY {key} "
        f"SELECT * FROM {nothing} {settings}"
    )
    describe = f"DESCRIBE (SELECT ({expression}\n) AS value FROM {nothing}) {settings}"
    try:
        run(insert, "Null")
        described = run(describe, "TSVRaw").bytes().decode()
    except (EngineError, TerminalError) as error:
        raise TerminalError(
            f"{_of(table)}: {expression} cannot be compiled: {str(error)[:300]}",
            "Correct it; it is SQL over the columns of the table.",
        ) from error
    return str(described).split("\t")[1].strip()


def settings_of(table: TableSpec) -> str:
    """What the function is evaluated under, as everything else that decides rows."""
    return settings_clause(session_timezone=literal(table.time_zone), **READS_NO_CLOCK)


def _of(table: TableSpec) -> str:
    return f"sharding of table entry {table.entry}"


def _is_whole_number(type_text: str) -> bool:
    inner = _LOW_CARDINALITY.fullmatch(type_text)
    return _WHOLE_NUMBER.fullmatch(inner[1] if inner else type_text) is not None
