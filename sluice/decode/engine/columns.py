"""Of a table's columns: which ones messages fill, which carry lineage, what must not be absent."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from sluice.core.errors import TerminalError
from sluice.core.formats import SKIPPED, column_names
from sluice.core.load_spec import LINEAGE_TYPES, Column, TableSpec
from sluice.decode.engine.expressions import functions_of_the_server, referenced_columns
from sluice.decode.engine.native import check_lineage_type
from sluice.decode.engine.types import parse_type

#: Types that cannot be absent: Nullable does not take them.
_NEVER_NULL = ("Array", "Map", "Tuple", "JSON", "Variant", "Dynamic")


def lineage_of(table: TableSpec) -> tuple[Column, ...]:
    """The lineage columns as the server has them, in our order.

    :raises TerminalError: the table has no such column, or one that cannot carry it.
    """
    by_name = {column.name: column for column in table.columns}
    lineage = []
    for name in LINEAGE_TYPES:
        if name in table.lineage:
            column = by_name.get(name)
            if column is None or column.kind not in ("", "DEFAULT"):
                raise TerminalError(
                    f"table {table.target} has no plain lineage column {name}",
                    f"ALTER TABLE … ADD COLUMN {name} {LINEAGE_TYPES[name]}, "
                    "or set lineage = false.",
                )
            check_lineage_type(name, column.type)
            lineage.append(column)
    return tuple(lineage)


def filled_columns(table: TableSpec) -> tuple[Column, ...]:
    """The columns that messages fill, stored or not.

    :raises TerminalError: it stores none of them, or lacks one that is required; or the server
        computes a column from one that it does not store, and so is not given.
    """
    _check_computed(table)
    kinds = ("", "DEFAULT", "EPHEMERAL")
    own = (column for column in table.columns if column.name not in table.lineage)
    filled = tuple(column for column in own if column.kind in kinds)
    if all(column.kind == "EPHEMERAL" for column in filled):
        raise TerminalError(
            f"table {table.target} has no column that a message could fill",
            "Add a column, or take the entry out of the configuration.",
        )
    stored = {column.name for column in filled if column.kind != "EPHEMERAL"}
    lacking = next((name for name in table.require if name not in stored), "")
    if lacking:
        raise TerminalError(
            f"table entry {table.entry} into {table.target} has no column {lacking} that messages "
            "can fill",
            "Correct require, or add the column.",
        )
    return filled


def only_column(table: TableSpec) -> str:
    """The column that takes a value, where messages have no other one.

    :raises TerminalError: neither the option `columns` nor the table says which one it is.
    """
    option = dict(table.options).get("columns", "")
    own = (column.name for column in filled_columns(table) if column.kind != "EPHEMERAL")
    names = column_names(option) if option else tuple(own)
    if len(names) != 1 or SKIPPED in names:
        said = "is none" if names == (SKIPPED,) else f"are {len(names)}"
        raise TerminalError(
            f"table {table.target}: a row of {table.format} is one column, and {', '.join(names)} "
            f"{said}",
            'Name the one that takes it: options = { columns = "…" }.',
        )
    return names[0]


def _check_computed(table: TableSpec) -> None:
    passed_over = () if table.dynamic is None else table.dynamic.passed_over
    unstored = {column.name for column in table.columns if column.kind == "EPHEMERAL"}
    unstored.difference_update(passed_over)
    for column in table.columns if unstored else ():
        if column.kind != "MATERIALIZED":
            continue
        waiting, seen = [column.expression], {column.name}
        while waiting:
            for other in referenced_columns(waiting.pop(), table.columns):
                if other.name in unstored:
                    raise TerminalError(
                        f"table {table.target}: column {column.name} is MATERIALIZED, and depends "
                        f"on {other.name}, which is EPHEMERAL: the server would compute it of the "
                        f"default of {other.name} in each row, since blocks do not carry that",
                        f"ALTER TABLE {table.target} MODIFY COLUMN {column.name} {column.type} "
                        f"DEFAULT {column.expression}: of a DEFAULT the messages' values are used.",
                    )
                if other.kind in ("MATERIALIZED", "ALIAS") and other.name not in seen:
                    seen.add(other.name)
                    waiting.append(other.expression)


def nullable_type(table: TableSpec, column: Column) -> str:
    """The type of a column that is required, with null for what is absent.

    :raises TerminalError: it has none.
    """
    node = parse_type(column.type)
    if node.name in _NEVER_NULL:
        raise TerminalError(
            f"table entry {table.entry} into {table.target} requires {column.name} {column.type}, "
            "a type that cannot be null",
            f"Use a check such as notEmpty({column.name}).",
        )
    if node.name == "LowCardinality":
        node = node.inner()
    return node.text if node.name == "Nullable" else f"Nullable({node.text})"


def with_null(table: TableSpec) -> TableSpec:
    """The entry for a format of which the columns decide whether an absent field is null: what is
    required may be null."""
    columns = (
        replace(column, type=nullable_type(table, column))
        if column.name in table.require
        else column
        for column in table.columns
    )
    return replace(table, columns=tuple(columns))


def check_default(table: TableSpec, column: Column, filled: Container[str]) -> tuple[Column, ...]:
    """The columns that a default expression names.

    :param filled: names of the columns that messages fill.
    :raises TerminalError: it names others, or asks what only the server knows.
    """
    asks = functions_of_the_server(column.expression)
    if asks and column.name not in table.require:
        raise TerminalError(
            f"table {table.target}: the default of {column.name} is computed with {asks[0]}, which "
            "a worker cannot ask",
            f"ALTER TABLE {table.target} MODIFY COLUMN {column.name} {column.type} MATERIALIZED "
            f"{column.expression}: the server computes that.",
        )
    used = referenced_columns(column.expression, table.columns)
    for other in used:
        if other.name not in filled:
            raise TerminalError(
                f"table {table.target}: the default of {column.name} refers to {other.name}, "
                "which is not read from messages",
                "Change the DEFAULT expression to refer to plain columns only.",
            )
    return used
