"""What stands around the query that makes a table's columns: partition key and order."""

from __future__ import annotations

from sluice.core.errors import TerminalError
from sluice.core.load_spec import SOURCE, Column, TableSpec
from sluice.decode.engine.expressions import referenced_columns
from sluice.decode.engine.session import identifier, literal, settings_clause

KEY_COLUMN = "_sluice_partition_key"
#: Of a sorted block: which row of the unsorted one each row was.
ORDER_COLUMN = "_sluice_order"
#: Of each row its place among all that were read, or that of its message; the last column.
PLACE_COLUMN = "_sluice_place"


class Keys:
    """The partition key and the sorting key over the columns of a block.

    :param names: of the block's columns, without lineage.
    :param lineage: see `columns.lineage_of`.
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
