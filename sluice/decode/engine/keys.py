"""What stands around the query that makes a table's columns: partition key and order."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from sluice.core.errors import TerminalError
from sluice.core.load_spec import LINEAGE_TYPES, SOURCE, Column, TableSpec
from sluice.decode.engine.expressions import functions_of_the_server, referenced_columns
from sluice.decode.engine.native import check_lineage_type
from sluice.decode.engine.session import identifier, literal, settings_clause
from sluice.decode.engine.types import parse_type

KEY_COLUMN = "_sluice_partition_key"
#: Of a sorted block: which row of the unsorted one each row was.
ORDER_COLUMN = "_sluice_order"
#: Of each row its place among all that were read, or that of its message; the last column.
PLACE_COLUMN = "_sluice_place"
#: Types that cannot be absent: Nullable does not take them.
_NEVER_NULL = ("Array", "Map", "Tuple", "Nested", "JSON", "Variant", "Dynamic")


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


class Keys:
    """The partition key and the sorting key over the columns of a block.

    :param names: of the block's columns, without lineage.
    :param lineage: see `lineage_of`.
    :raises TerminalError: a key depends on columns that blocks do not carry.
    """

    def __init__(self, table: TableSpec, names: tuple[str, ...], lineage: tuple[Column, ...]):
        self._table = table
        self.names = names
        self.lineage = lineage
        #: Whether the partition key can only be known once the lineage columns are there.
        self.needs_lineage = False
        self._key = self._partition_key()
        self._sorting = self._sorting_clauses() if table.sort else None

    @property
    def has_partition_key(self) -> bool:
        """Whether blocks can touch more than one ClickHouse partition."""
        return self._key is not None

    @property
    def has_key_column(self) -> bool:
        """Whether `around` adds a hash of the partition key, behind the columns."""
        return self._key is not None and not self.needs_lineage

    @property
    def has_order_column(self) -> bool:
        """Whether `around` sorts, and adds the places of the rows as last column."""
        return self._sorting is not None

    def around(self, inner: str, also: tuple[str, ...] = ()) -> str:
        """The query with the key column, sorted.

        :param inner: a SELECT of the columns by their names.
        :param also: further columns of `inner` to keep, behind all others; they do not sort.
        """
        kept = "".join(f", {identifier(name)}" for name in also)
        if self._key is not None and self.has_key_column:
            clause, key = self._key
            names = ", ".join(map(identifier, self.names))
            inner = f"{clause}SELECT {names}, {key}{kept} FROM ({inner})"
        if self._sorting is not None:
            head, tail = self._sorting
            inner = f"{head}{kept} FROM ({inner}{tail}"
        return inner

    def into(self, path: str, columns: str, has_keys: bool, has_places: bool) -> str:
        """Where a block is written to. Its columns are said, or the engine would analyse the query
        twice to know them.

        :param columns: names and types.
        :param has_keys: the query is one of `around`.
        :param has_places: its last column is PLACE_COLUMN.
        """
        if has_keys and self.has_key_column:
            columns += f", {KEY_COLUMN} UInt64"
        if has_keys and self.has_order_column:
            columns += f", {ORDER_COLUMN} UInt32"
        if has_places:
            columns += f", {PLACE_COLUMN} UInt32"
        return f"INSERT INTO FUNCTION file({literal(path)}, Native, {literal(columns)})"

    def partitions_of(self, path: str) -> str:
        """The number of ClickHouse partitions of a Native block in a file."""
        query = self._key_alone.replace("{source}", f"file({literal(path)}, Native)")
        return f"{query} {settings_clause(session_timezone=literal(self._table.time_zone))}"

    def _partition_key(self) -> tuple[str, str] | None:
        """What stands before a SELECT, and the hash of the partition key as its last column."""
        table = self._table
        if not table.partition_key.strip():
            return None
        aliases, used = self._computed(table.partition_key)
        lineage = {column.name for column in self.lineage}
        missing = used - set(self.names) - lineage - set(aliases)
        if missing:
            raise TerminalError(
                f"table {table.target}: the partition key depends on {min(missing)}, "
                "which blocks do not carry",
                "Partition by columns that are inserted.",
            )
        self.needs_lineage = bool(used & lineage)
        clause = f"WITH {', '.join(aliases.values())} " if aliases else ""
        self._key_alone = f"{clause}SELECT uniqExact(tuple({table.partition_key})) FROM {{source}}"
        return clause, f"sipHash64(tuple({table.partition_key})) AS {KEY_COLUMN}"

    def _computed(self, key: str) -> tuple[dict[str, str], set[str]]:
        """The columns below a key that the server computes, as definitions by name; and the
        names of all columns that the key depends on."""
        columns = self._table.columns
        aliases: dict[str, str] = {}
        waiting = [key]
        while waiting:
            for column in referenced_columns(waiting.pop(), columns):
                if column.kind in ("MATERIALIZED", "ALIAS") and column.name not in aliases:
                    cast = f"CAST(({column.expression}), {literal(column.type)})"
                    aliases[column.name] = f"{cast} AS {identifier(column.name)}"
                    waiting.append(column.expression)
        texts = [key, *aliases.values()]
        used = {column.name for text in texts for column in referenced_columns(text, columns)}
        return aliases, used

    def _sorting_clauses(self) -> tuple[str, str] | None:
        """What stands before and after a query whose rows are to be sorted; None if the table
        has no order.

        Lineage columns are not there yet: within a block of one range, `_offset` grows with the
        order of the messages and the others are constant. The server sorts what is not in its
        order, so an expression over them, or a bundle of ranges, costs time at worst.
        """
        table = self._table
        if not table.sorting_key.strip():
            return None
        aliases, used = self._computed(f"tuple({table.sorting_key})")
        stand_ins = {"_topic": "''", "_partition": "0", "_row": "0", "_offset": ORDER_COLUMN}
        if SOURCE in {column.name for column in self.lineage}:
            stand_ins[SOURCE] = "''"
        missing = used - set(self.names) - set(stand_ins) - set(aliases)
        if missing:
            raise TerminalError(
                f"table {table.target}: the sorting key depends on {min(missing)}, "
                "which blocks do not carry",
                "Set sort = false for this entry.",
            )
        order = f"toUInt32(rowNumberInAllBlocks()) AS {ORDER_COLUMN}"
        names = [identifier(name) for name in self.names]
        if self.has_key_column:
            names.append(KEY_COLUMN)
        terms = [f"{value} AS {name}" for name, value in stand_ins.items() if name in used]
        terms += aliases.values()
        clause = f"WITH {', '.join(terms)} " if terms else ""
        head = f"{clause}SELECT {', '.join([*names, order])}"
        return head, f") ORDER BY {table.sorting_key}, {ORDER_COLUMN}"
