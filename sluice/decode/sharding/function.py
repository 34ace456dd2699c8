"""The function that says which shard a row goes to, in ClickHouse SQL.

It is a UInt64, modulo the number of shards: what a Distributed table over them does with the
same sharding key, where all weights are equal and its shards stand in the order of their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, Sharding, TableSpec
from sluice.decode.engine.of_rows import Compiled
from sluice.decode.engine.session import identifier

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
    compiled = Compiled(table, columns, f"sharding of table entry {table.entry}", "Shard by")
    compiled.check(expression, "a message that is loaded again could go to another shard")
    key = sharding_key(sharding, table.columns)
    found = compiled.type_of(expression, key)
    if "Nullable(" in found or found in ("Null", "Nothing"):
        raise TerminalError(
            f"{compiled.what}: {expression} is {found}, and null belongs to no shard",
            'Say where null goes: sharding = { by = "expression", expression = '
            f'"xxHash64(ifNull({expression}, …))" }}.',
        )
    if sharding.by == "expression" and not _is_whole_number(found):
        raise TerminalError(
            f"{compiled.what}: {expression} is {found}, not a whole number",
            f"Hash it, as in xxHash64({expression}).",
        )


def _is_whole_number(type_text: str) -> bool:
    inner = _LOW_CARDINALITY.fullmatch(type_text)
    return _WHOLE_NUMBER.fullmatch(inner[1] if inner else type_text) is not None
